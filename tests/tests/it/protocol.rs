//! The documents of the protocols agree with the code, and suffice to write a program from.

use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tailwater_iokernel::Config;
use tailwater_shm::Version;
use tailwater_shm::control::{ClientMessage, ServerMessage, encode};
use tailwater_shm::layout::VERSION;
use tailwater_testkit::{PATIENCE, Program, has_two_cpus, is_installed};
use tailwater_tests::{Bench, CLIENT};

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn document(name: &str) -> String {
    std::fs::read_to_string(file("../docs/src/protocols").join(name)).expect("the document is there")
}

/// Returns the sections that begin with a heading, each with its heading.
fn sections(document: &str) -> impl Iterator<Item = &str> {
    document.split("\n## ").skip(1)
}

/// Returns the examples of messages: the contents of blocks marked as JSON.
fn examples(text: &str) -> Vec<Value> {
    let blocks = text.split("```json\n").skip(1);
    let contents = blocks.map(|block| block.split("```").next().expect("a first part"));
    contents.map(|text| serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))).collect()
}

/// Returns the name of a message and its fields.
fn parts(message: &Value) -> (&str, BTreeSet<&str>) {
    match message {
        Value::String(name) => (name, BTreeSet::new()),
        Value::Object(object) => {
            let (name, fields) = object.iter().next().expect("one key");
            // One message is a word, which the text explains.
            let keys = fields.as_object().into_iter().flat_map(serde_json::Map::keys);
            (name, keys.map(String::as_str).collect())
        }
        other => panic!("no message: {other}"),
    }
}

/// Returns the quoted words of a text: those between backticks.
fn quoted(text: &str) -> BTreeSet<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Returns the quoted words in the first column of the tables whose heading begins with one of
/// these words.
fn first_column<'a>(section: &'a str, headings: &[&str]) -> BTreeSet<&'a str> {
    let (mut inside, mut words) = (false, BTreeSet::new());
    for line in section.lines() {
        let Some(row) = line.strip_prefix("| ") else {
            inside &= line.starts_with('|');
            continue;
        };
        let first = row.split(" | ").next().expect("a first part");
        inside |= headings.iter().any(|heading| first.starts_with(heading));
        if inside && !headings.iter().any(|heading| first.starts_with(heading)) {
            words.extend(quoted(first));
        }
    }
    words
}

/// Returns the names of all messages of a type: its parser lists them when it meets another.
fn names<M: DeserializeOwned + std::fmt::Debug>() -> BTreeSet<String> {
    let error = serde_json::from_str::<M>("\"nonsense\"").expect_err("no message has this name").to_string();
    let (_, expected) = error.split_once("expected").unwrap_or_else(|| panic!("another error: {error}"));
    quoted(expected).into_iter().map(str::to_owned).collect()
}

/// Returns the message that this example becomes when it is read and written again.
fn rewritten<M: DeserializeOwned + serde::Serialize>(example: &Value) -> Option<Value> {
    let message: M = serde_json::from_value(example.clone()).ok()?;
    Some(serde_json::from_slice(&encode(&message)).expect("a message is JSON"))
}

#[test]
fn the_document_has_an_example_of_every_message_as_the_code_reads_and_writes_it() {
    let document = document("control.md");
    let examples = examples(&document);
    for example in &examples {
        let again = rewritten::<ClientMessage>(example).or_else(|| rewritten::<ServerMessage>(example));
        assert_eq!(again.as_ref(), Some(example), "the code reads something else, or nothing");
    }
    let shown: BTreeSet<String> = examples.iter().map(|example| parts(example).0.to_owned()).collect();
    let all: BTreeSet<String> = names::<ClientMessage>().union(&names::<ServerMessage>()).cloned().collect();
    assert!(all.len() > 8, "{all:?}");
    assert_eq!(shown, all);
}

#[test]
fn the_document_explains_every_field_and_no_other() {
    let document = document("control.md");
    for section in sections(&document) {
        let examples = examples(section);
        let fields = examples.iter().map(parts).filter(|(name, _)| *name != "stats");
        let (mut all, mut tables) = (BTreeSet::new(), BTreeSet::new());
        for (name, fields) in fields {
            if name != "tracing" {
                all.extend(fields);
            }
        }
        tables.extend(first_column(section, &["field"]));
        let explained = quoted(section);
        let heading = section.lines().next().expect("a heading");
        assert!(all.is_subset(&explained), "{heading}: {all:?} and {explained:?}");
        assert!(tables.is_subset(&all), "{heading}: {tables:?} and {all:?}");
    }
}

#[test]
fn the_documents_are_of_the_version_of_the_code() {
    let (control, memory) = (document("control.md"), document("memory.md"));
    assert!(control.contains(&format!("this page describes version {}", Version::OWN)));
    assert!(control.contains(&format!("\"version\": {VERSION},")));
    assert!(memory.contains(&format!("| version: {VERSION}, which is {} |", Version::OWN)));
}

#[test]
fn a_program_written_from_the_documents_alone_registers_sends_and_receives() {
    serves_a_program_of(Version::OWN);
}

#[test]
fn programs_built_with_the_minor_version_before_and_with_the_first_are_served() {
    let own = Version::OWN;
    for minor in [own.minor().saturating_sub(1), 0] {
        serves_a_program_of(Version::new(own.major(), minor));
    }
}

/// Runs a program that speaks this version on an IOKernel, until it has sent and received all that
/// it has to.
fn serves_a_program_of(version: Version) {
    if !has_two_cpus() || !is_installed("python3", "python3") {
        return;
    }
    // The program has no rank above others, so a busy machine keeps it from its core for long.
    let patient = |config: &mut Config| {
        config.start_deadline_us = 5_000_000;
    };
    let bench = Bench::start(patient, Vec::new());
    let mut command = Command::new("python3");
    command.arg(file("clients/raw.py")).arg(bench.socket());
    command.args([version.0.to_string(), CLIENT.ip.to_string(), CLIENT.port.to_string()]);
    let mut client = Program::start(&mut command);
    // Each exchange waits a few times for a core, which on a busy machine takes long.
    let deadline = Instant::now() + 2 * PATIENCE;
    let mut answered = 0;
    while answered < 36 {
        answered += usize::from(bench.return_datagram(Duration::from_millis(20)));
        // With the last answer the client ends.
        let goes_on = answered == 36 || (Instant::now() < deadline && client.is_running());
        assert!(goes_on, "after {answered}: {}", client.errors());
    }
    assert_eq!(client.line().as_deref(), Some("ok"), "{}", client.errors());
    assert!(client.wait().success(), "{}", client.errors());
}
