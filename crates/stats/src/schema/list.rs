//! The list itself: every counter, gauge and histogram of the document.

use super::{Field, Kind, Label, PLACE, Part, Shape, Step};
use crate::account::{PhaseTimes, Samples};
use crate::counters::{CoreCounters, FirewallCounters, LoopCounters, RuntimeCounters, SwitchCounters};

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
