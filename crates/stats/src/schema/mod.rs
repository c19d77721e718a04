//! Every counter, gauge and histogram of the statistics: how they are described and found.
//!
//! Owns the description of a part of the document (labels, path, shape), the walk over a document
//! by it, and names of metrics. The list itself, [`PARTS`], is in `list`: counters come from the
//! structs that count, what else the document has is written there. Metrics, `tailwater top`, the
//! web page and the page of the book are made from it; the tests of `tailwater_iokernel::stats`
//! compare it with a document that has everything.

mod list;

use std::borrow::Cow;

use serde_json::Value;

pub use crate::field::{Field, Kind, Unit};
pub use list::PARTS;

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

#[cfg(test)]
mod tests;
