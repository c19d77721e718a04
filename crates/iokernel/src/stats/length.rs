//! What a document leaves out to stay a message.
//!
//! Owns the order: what matters least goes first, and what is gone is named in the document. The
//! classes of requests, which programs publish, get the room that is left, and are not here.

use serde_json::{Value, json};
use tailwater_stats::RuntimeCounters;
use tailwater_stats::schema::Kind;

/// A name, and the function that takes the thing out of a document.
type Step = (&'static str, fn(&mut Value));

const STEPS: [Step; 4] = [
    ("registrations", |document| document["registrations"] = json!([])),
    ("refusals", |document| document["refusals"] = json!([])),
    ("threads", |document| each_program(document, |program| program["threads"] = json!([]))),
    ("zeros", |document| each_program(document, leave_out_zeros)),
];

fn each_program(document: &mut Value, change: impl Fn(&mut Value)) {
    document["runtimes"].as_array_mut().into_iter().flatten().for_each(change);
}

/// Leaves out a program's counters that are 0. Gauges stay: 0 cores is a fact, not a beginning.
fn leave_out_zeros(program: &mut Value) {
    let is_gauge =
        |key: &str| RuntimeCounters::FIELDS.iter().any(|field| field.key == key && field.kind == Kind::Gauge);
    if let Some(counters) = program["counters"].as_object_mut() {
        counters.retain(|key, value| value != &json!(0) || is_gauge(key));
    }
}

/// Shortens a document to `most` bytes, and writes into it what is missing: `left_out` names kinds,
/// and `runtimes_left_out` is the number of programs, of which the last registered go first.
/// Returns the length without these two.
pub(super) fn shorten(document: &mut Value, most: usize) -> usize {
    let mut length = document.to_string().len();
    let mut left_out = Vec::new();
    for (name, leave_out) in STEPS {
        if length <= most {
            break;
        }
        leave_out(document);
        left_out.push(name);
        length = document.to_string().len();
    }
    let mut programs = 0;
    if let Some(all) = document["runtimes"].as_array_mut() {
        while length > most
            && let Some(program) = all.pop()
        {
            // With a comma.
            length = length.saturating_sub(program.to_string().len() + 1);
            programs += 1;
        }
    }
    document["left_out"] = json!(left_out);
    document["runtimes_left_out"] = json!(programs);
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Value {
        let program = |id: u64| {
            json!({ "id": id, "threads": vec![100_000; 20],
                "counters": { "cores": 0, "rx_frames": 0, "tx_frames": u64::MAX } })
        };
        json!({ "registrations": ["x".repeat(100)], "refusals": ["x".repeat(1_000)], "runtimes": (0..10).map(program).collect::<Vec<_>>() })
    }

    #[test]
    fn what_matters_least_is_left_out_first_and_named() {
        let whole = document().to_string().len();
        let shortened = |most: usize| {
            let mut document = document();
            shorten(&mut document, most);
            let left_out = document["left_out"].as_array().unwrap().len();
            let programs = document["runtimes"].as_array().unwrap().len() as u64;
            assert_eq!(programs + document["runtimes_left_out"].as_u64().unwrap(), 10);
            (left_out, programs, document)
        };
        assert_eq!(shortened(whole).0, 0);
        let (left_out, _, document) = shortened(whole - 1);
        assert_eq!((left_out, &document["left_out"][0]), (1, &json!("registrations")));
        let (left_out, _, document) = shortened(whole - 200);
        assert_eq!((left_out, &document["left_out"][1]), (2, &json!("refusals")));
        let (left_out, programs, document) = shortened(whole - 1_300);
        assert_eq!((left_out, programs), (3, 10));
        assert_eq!(document["runtimes"][9]["threads"], json!([]));
        let (left_out, programs, document) = shortened(whole - 2_600);
        assert_eq!((left_out, programs), (4, 10));
        let counters = json!({ "cores": 0, "tx_frames": u64::MAX });
        assert_eq!(document["runtimes"][9]["counters"], counters);
        let (_, programs, document) = shortened(400);
        assert!((1..10).contains(&programs) && document["runtimes"][0]["id"] == 0, "{programs}");
        assert_eq!(shortened(0).1, 0);
    }
}
