//! The list of every counter, gauge and histogram of the statistics.
//!
//! Owns for each its name, unit, meaning and labels, and where the document has it. Counters come
//! from the structs that count; what else the document has is listed here. Metrics, `tailwater
//! top`, the web page and the page of the book are made from [`PARTS`]; a test compares it with a
//! document that has everything.

use std::borrow::Cow;

use serde_json::Value;

use super::account::{PhaseTimes, Samples};
pub use super::counter::{Field, Kind, Unit};
use super::{CoreCounters, FirewallCounters, LoopCounters, RuntimeCounters, SwitchCounters};

impl Field {
    /// Returns the name of the metric that a part's field is: times in seconds, as is usual for
    /// metrics.
    pub fn metric(&self, part: &Part) -> String {
        let prefix = if part.name.is_empty() { String::new() } else { format!("{}_", part.name) };
        let stem = self.key.strip_suffix("_ns").unwrap_or(self.key);
        let unit = match self.unit {
            Unit::Nanoseconds => "_seconds",
            Unit::Ratio if !stem.ends_with("ratio") => "_ratio",
            Unit::Ratio | Unit::Count | Unit::Bytes => "",
        };
        let total = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("tailwater_{prefix}{stem}{unit}{total}")
    }
}

/// A label of a metric, and the key at which an element has its value.
#[derive(Debug, Clone, Copy)]
pub struct Label {
    /// Name of the label.
    pub name: &'static str,
    /// Key in the element; [`PLACE`]: the element's number, from 1.
    pub key: &'static str,
}

/// The key of a [`Label`] that is the number of the element.
pub const PLACE: &str = "#";

/// One step from the top of the document to the numbers.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    /// The value at a key.
    Key(&'static str),
    /// Each element of an array, which these labels tell apart.
    Each(&'static [Label]),
    /// Each value of an object; its key is the value of this label.
    EachKey(&'static str),
    /// The object itself, and the one at this key of it, if there is one.
    AndWithin(&'static str),
}

/// The numbers behind a path.
#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// Each field is a metric.
    Fields(&'static [Field]),
    /// The keys are values of one label of one metric.
    Values {
        /// The metric.
        metric: Field,
        /// The label.
        label: &'static str,
        /// The keys, and what each means.
        values: &'static [Field],
    },
    /// The value is the number.
    Whole(Field),
}

impl Shape {
    /// Returns everything that has a meaning of its own.
    pub fn fields(&self) -> &[Field] {
        match self {
            Self::Fields(fields) | Self::Values { values: fields, .. } => fields,
            Self::Whole(field) => std::slice::from_ref(field),
        }
    }

    /// Returns the fields that are metrics: one where the keys are values of a label.
    pub fn metrics(&self) -> &[Field] {
        match self {
            Self::Fields(fields) => fields,
            Self::Values { metric: field, .. } | Self::Whole(field) => std::slice::from_ref(field),
        }
    }
}

/// Numbers at one place of the document.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// Beginning of the names of its metrics.
    pub name: &'static str,
    /// The way there.
    pub path: &'static [Step],
    /// What is there.
    pub shape: Shape,
}

impl Part {
    /// Returns the path in words, as the book has it: `runtimes[].counters`.
    pub fn place(&self) -> String {
        let mut place = String::new();
        for step in self.path {
            match step {
                Step::Key(key) if place.is_empty() => place.push_str(key),
                Step::Key(key) => place = format!("{place}.{key}"),
                Step::Each(_) => place.push_str("[]"),
                Step::EachKey(label) => place = format!("{place}.<{label}>"),
                Step::AndWithin(_) => {}
            }
        }
        place
    }

    /// Returns the name of the metric that shows one of [`fields`](Shape::fields).
    pub fn metric_of(&self, field: &Field) -> String {
        match &self.shape {
            Shape::Values { metric, .. } => metric.metric(self),
            Shape::Fields(_) | Shape::Whole(_) => field.metric(self),
        }
    }

    /// Returns the names of the labels.
    pub fn labels(&self) -> Vec<&'static str> {
        let mut labels = Vec::new();
        for step in self.path {
            match step {
                Step::Each(each) => labels.extend(each.iter().map(|label| label.name)),
                Step::EachKey(label) => labels.push(label),
                Step::Key(_) | Step::AndWithin(_) => {}
            }
        }
        if let Shape::Values { label, .. } = self.shape {
            labels.push(label);
        }
        labels
    }

    /// Calls `found` with each number of the part in a document: its field, its labels and its
    /// value. What the document lacks, for instance because its IOKernel is older, is left out.
    pub fn visit<'a>(&self, document: &'a Value, found: &mut dyn FnMut(&Field, &Labels<'a>, &'a Value)) {
        self.descend(self.path, document, &mut Vec::new(), found);
    }

    fn descend<'a>(
        &self,
        path: &[Step],
        at: &'a Value,
        labels: &mut Labels<'a>,
        found: &mut dyn FnMut(&Field, &Labels<'a>, &'a Value),
    ) {
        let Some((step, rest)) = path.split_first() else { return self.read(at, labels, found) };
        let depth = labels.len();
        match step {
            Step::Key(key) => self.descend(rest, &at[key], labels, found),
            Step::AndWithin(key) => {
                self.descend(rest, at, labels, found);
                self.descend(rest, &at[key], labels, found);
            }
            Step::Each(names) => {
                for (place, element) in at.as_array().into_iter().flatten().enumerate() {
                    let value = |label: &Label| match label.key {
                        PLACE => (place + 1).to_string().into(),
                        key => text(&element[key]),
                    };
                    labels.extend(names.iter().map(|label| (label.name, value(label))));
                    self.descend(rest, element, labels, found);
                    labels.truncate(depth);
                }
            }
            Step::EachKey(name) => {
                for (key, value) in at.as_object().into_iter().flatten() {
                    labels.push((name, key.into()));
                    self.descend(rest, value, labels, found);
                    labels.truncate(depth);
                }
            }
        }
    }

    fn read<'a>(
        &self,
        at: &'a Value,
        labels: &mut Labels<'a>,
        found: &mut dyn FnMut(&Field, &Labels<'a>, &'a Value),
    ) {
        let mut visit = |field: &Field, labels: &Labels<'a>, value: &'a Value| {
            if !value.is_null() {
                found(field, labels, value);
            }
        };
        match self.shape {
            Shape::Fields(fields) => fields.iter().for_each(|field| visit(field, labels, &at[field.key])),
            Shape::Values { metric, label, values } => {
                for value in values {
                    labels.push((label, value.key.into()));
                    visit(&metric, labels, &at[value.key]);
                    labels.pop();
                }
            }
            Shape::Whole(field) => visit(&field, labels, at),
        }
    }
}

/// Labels and their values.
pub type Labels<'a> = Vec<(&'static str, Cow<'a, str>)>;

/// Returns a value as a label has it; nothing for null.
pub fn text(value: &Value) -> Cow<'_, str> {
    match value {
        Value::Null => "".into(),
        Value::String(text) => text.into(),
        other => other.to_string().into(),
    }
}

const fn counter(key: &'static str, help: &'static str) -> Field {
    Field::new(key, Kind::Counter, help)
}

const fn gauge(key: &'static str, help: &'static str) -> Field {
    Field::new(key, Kind::Gauge, help)
}

const fn histogram(key: &'static str, help: &'static str) -> Field {
    Field::new(key, Kind::Histogram, help)
}

const fn percentiles(key: &'static str, help: &'static str) -> Field {
    Field::new(key, Kind::Percentiles, help)
}

const fn label(name: &'static str, key: &'static str) -> Label {
    Label { name, key }
}

const PROGRAM: Step = Step::Each(&[label("program", "name"), label("id", "id"), label("class", "class")]);
const PORT: Step = Step::Each(&[label("port", "name")]);
const JOB: Step = Step::Each(&[label("batch_job", "name"), label("pid", "pid")]);
const CORE: Step = Step::Each(&[label("core", "core")]);
const RULE: Step = Step::Each(&[
    label("rule", "name"),
    label("number", PLACE),
    label("runtime", "runtime"),
    label("direction", "direction"),
    label("action", "action"),
]);

/// Every number of the document that counts or measures.
pub const PARTS: &[Part] = &[
    part("", &[], Shape::Fields(TOP)),
    part("loop", &[Step::Key("loop")], Shape::Fields(LoopCounters::FIELDS)),
    part("switch", &[Step::Key("switch")], Shape::Fields(SwitchCounters::FIELDS)),
    part("firewall", &[Step::Key("firewall")], Shape::Fields(FirewallCounters::FIELDS)),
    part("firewall_rule", &[Step::Key("firewall"), Step::Key("rules"), RULE], Shape::Fields(RULES)),
    part("cores", &[Step::Key("cores")], Shape::Fields(CoreCounters::FIELDS)),
    part("reclaim", &[Step::Key("reclaim")], Shape::Fields(RECLAIM)),
    part("handoff", &[Step::Key("handoff"), Step::EachKey("kind")], Shape::Fields(HANDOFF)),
    part(
        "core",
        &[Step::Key("account"), CORE, Step::Key("ns")],
        Shape::Values {
            metric: counter("time_ns", "Time of a managed core, by phase."),
            label: "phase",
            values: PhaseTimes::FIELDS,
        },
    ),
    part(
        "core",
        &[Step::Key("account"), CORE, Step::Key("samples"), Step::EachKey("class")],
        Shape::Values {
            metric: counter("samples", "What busy kthreads of a class did on a core, by samples every 5 us."),
            label: "doing",
            values: Samples::FIELDS,
        },
    ),
    part("port", &[Step::Key("ports"), PORT], Shape::Fields(PORTS)),
    part("port_fault_in", &[Step::Key("ports"), PORT, Step::Key("account"), Step::Key("in")], FAULT),
    part("port_fault_out", &[Step::Key("ports"), PORT, Step::Key("account"), Step::Key("out")], FAULT),
    part("port_pcap", &[Step::Key("ports"), PORT, Step::Key("account"), INNER], Shape::Fields(PCAP)),
    part("port_xdp", &[Step::Key("ports"), PORT, Step::Key("account"), INNER], Shape::Fields(XDP)),
    part(
        "port_xdp_queue",
        &[Step::Key("ports"), PORT, Step::Key("account"), INNER, Step::Key("queues"), QUEUE],
        Shape::Fields(XDP_QUEUE),
    ),
    part("program", &[Step::Key("runtimes"), PROGRAM], Shape::Fields(PROGRAMS)),
    part(
        "program",
        &[Step::Key("runtimes"), PROGRAM, Step::Key("counters")],
        Shape::Fields(RuntimeCounters::FIELDS),
    ),
    part(
        "request",
        &[Step::Key("runtimes"), PROGRAM, Step::Key("classes"), REQUEST],
        Shape::Fields(REQUESTS),
    ),
    part("job", &[Step::Key("batch_jobs"), JOB, Step::Key("usage")], Shape::Fields(JOBS)),
    part(
        "job",
        &[Step::Key("batch_jobs"), JOB, Step::Key("usage"), Step::Key("by_core_ns"), Step::EachKey("core")],
        Shape::Whole(counter("by_core_ns", "Processor time that a batch job got on a core.")),
    ),
    part(
        "job",
        &[Step::Key("batch_jobs"), JOB, Step::Key("usage"), Step::Key("share"), Step::EachKey("core")],
        Shape::Whole(gauge("share", "Part of a core that a batch job had between the last two samples.")),
    ),
    part("capture", &[Step::Key("captures"), CAPTURE], Shape::Fields(CAPTURES)),
    part("trace", &[Step::Key("trace")], Shape::Fields(TRACE)),
];

const INNER: Step = Step::AndWithin("inner");
const QUEUE: Step = Step::Each(&[label("queue", PLACE)]);
const REQUEST: Step = Step::Each(&[label("request", "name"), label("dispatcher", "dispatcher")]);
const CAPTURE: Step = Step::Each(&[label("capture", "id")]);

const fn part(name: &'static str, path: &'static [Step], shape: Shape) -> Part {
    Part { name, path, shape }
}

const TOP: &[Field] = &[
    histogram(
        "apply_ns",
        "Time of the IOKernel per hand-off of a core: to carry out the decision and to notice its end.",
    ),
    histogram("fence_ns", "Time until the frames that a moved flow group had left were read."),
    gauge("runtimes_left_out", "Programs that the document had no room for."),
];

const RULES: &[Field] = &[counter("matched", "Packets that a firewall rule decided.")];

const RECLAIM: &[Field] = &[
    histogram(
        "since_notice_ns",
        "Time until a core of a dead program was free or lent again, since the IOKernel noticed the death.",
    ),
    histogram("since_alive_ns", "The same since the last look that found the program alive: an upper bound."),
];

const HANDOFF: &[Field] = &[
    histogram(
        "gave_up_ns",
        "Hand-off of a core: from the decision until the owner gave it up, by its own statement; of busy owners only.",
    ),
    histogram("ceded_ns", "Hand-off of a core: from the decision until it was seen ceded."),
    histogram("running_ns", "Hand-off of a core: from the decision until the new owner was seen running."),
];

const PORTS: &[Field] = &[
    counter("injected", "Frames that a port injected."),
    counter("transmitted", "Frames that a port took."),
    counter("refused", "Frames that a port refused, and those longer than the network's packets may be."),
    gauge("failed", "1 if the port failed and was detached."),
];

const FAULT: Shape = Shape::Fields(&[
    counter("offered", "Frames that came to an emulated bad network."),
    counter("passed", "Frames that it delivered."),
    counter("lost", "Frames that it lost."),
    counter("duplicated", "Frames that it duplicated."),
    counter("corrupted", "Frames that it corrupted."),
    counter("reordered", "Frames that it reordered."),
    counter("queue_full", "Frames that it dropped because its queue was full."),
    counter("held_full", "Frames that it dropped because it held too many."),
]);

const PCAP: &[Field] = &[
    counter("replayed", "Frames replayed from a capture file."),
    counter(
        "skipped",
        "Frames of the file longer than the IOKernel accepts, or cut when they were captured.",
    ),
    gauge("finished", "1 when the file is replayed to its end."),
    counter("recorded", "Frames recorded to a capture file."),
    counter("dropped", "Frames not recorded because the recorder was behind."),
];

const XDP: &[Field] = &[
    counter("checksums_completed", "Transport checksums completed."),
    counter("send_full", "Frames dropped because all send chunks were in use."),
    counter("invalid_descriptors", "Invalid descriptors in the kernel's rings."),
    counter("absences", "Times that the port lost its interface."),
    gauge("absent", "1 while there is no interface of the port's name that it can use."),
    counter(
        "gateway_answers",
        "Questions of programs for their gateway that were answered (`share=addresses`, `share=ports`).",
    ),
    counter(
        "no_next_hop",
        "Frames to the gateway that were dropped, at once or after a time, because the station of \
         Linux's next hop is unknown (`share=addresses`, `share=ports`).",
    ),
    counter(
        "kept_off_wire",
        "Frames dropped because the wire must not see them: other protocols than IP and ARP, and frames to \
         the interface's own MAC address (`share=addresses`); all but IP to the gateway (`share=ports`).",
    ),
    counter(
        "foreign_ports",
        "Frames of programs dropped because the port that they come from is not the program's (`share=ports`).",
    ),
];

const XDP_QUEUE: &[Field] = &[
    counter("rx_dropped", "Frames that the kernel dropped before an AF_XDP socket."),
    counter("rx_invalid", "Invalid descriptors in the fill ring, as the kernel counts."),
    counter("tx_invalid", "Invalid descriptors in the send ring, as the kernel counts."),
    counter("rx_ring_full", "Frames that the kernel dropped because the receive ring was full."),
    counter("fill_ring_empty", "Times that the kernel found no chunk to receive into."),
    counter("tx_ring_empty", "Times that the kernel found no frame to send."),
];

const PROGRAMS: &[Field] = &[
    gauge("kthreads", "Kthreads of a program: most cores it uses at once."),
    gauge("guaranteed", "Cores guaranteed to a program."),
    gauge("queued_threads", "User threads that are runnable and wait for a kthread, by the program's words."),
    gauge("waiting_rings", "Kthreads of a program in whose ring frames wait."),
    gauge("classes_left_out", "Classes of requests that the document had no room for."),
];

const REQUESTS: &[Field] = &[
    gauge("slo_ns", "Target of a class of requests for the 99th percentile of the latency; 0: none."),
    counter("accepted", "Requests accepted, by class, as the program publishes."),
    counter("dropped", "Requests refused for lack of a place."),
    counter("finished", "Requests finished."),
    counter("panicked", "Finished requests that panicked."),
    counter("preemptions", "Times that a request was preempted."),
    counter("held", "Times that a request blocked and kept its lane."),
    counter("late", "Requests that took longer than the target."),
    gauge("slo_ratio", "The 99th percentile of the latency over the target."),
    percentiles("queue_delay_ns", "Time from arrival until a request first ran."),
    percentiles("service_ns", "Time that a request ran."),
    percentiles("latency_ns", "Time from arrival to the end of a request."),
];

const JOBS: &[Field] = &[
    gauge("processes", "Processes of a batch job that run."),
    gauge("threads", "Their threads."),
    counter("core_ns", "Processor time that a batch job got, also of processes that ended."),
];

const CAPTURES: &[Field] = &[
    counter("captured", "Frames copied to a watcher."),
    counter("dropped", "Frames not copied because the watcher was slow."),
];

const TRACE: &[Field] = &[
    counter("sampled", "Frames chosen by the trace of requests."),
    counter("lost", "Steps that kthreads claim to have overwritten before the IOKernel read them."),
];

#[cfg(test)]
mod tests;
