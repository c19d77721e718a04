//! Generated zones, and the same questions to this server and to widely used servers: where they
//! agree, this server agrees. Skips, with a message, if fewer than two of them are installed.
//!
//! Environment: `TAILWATER_DNS_SEEDS=FIRST..END` chooses other zones, for a longer run.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::common::generate::{Generated, Signed};
use crate::common::reference::{Client, start_all};
use crate::common::{name, query, secure_query, show, without_servers};
use tailwater_dns::linux::Server;
use tailwater_dns::serve::{Limits, Shared};
use tailwater_dns::store::{Source, Store};

/// Seeds of the zones.
const SEEDS: std::ops::Range<u64> = 1..5;

/// Random names for each zone, beside those of its records.
const NAMES: usize = 12;

fn seeds() -> std::ops::Range<u64> {
    let given = std::env::var("TAILWATER_DNS_SEEDS").ok();
    let range = given.as_ref().and_then(|text| text.split_once(".."));
    range.map_or(SEEDS, |(first, end)| first.parse().expect("a number")..end.parse().expect("a number"))
}

/// Returns an answer in a form that does not depend on the order of records: with the additional
/// section, except the addresses of the zone's servers, or without.
fn essence(answer: &[u8], additional: bool) -> Vec<String> {
    let mut lines: Vec<_> = without_servers(show(answer)).iter().map(|line| line.to_lowercase()).collect();
    let head = lines.remove(0);
    lines.retain(|line| !line.contains(" opt ") && (additional || !line.starts_with("ar ")));
    lines.sort();
    lines.dedup();
    lines.insert(0, head);
    lines
}

/// What came of the questions.
#[derive(Debug, Default)]
struct Outcome {
    asked: usize,
    agreed: usize,
    differences: String,
}

impl Outcome {
    fn compare(&mut self, question: &str, ours: &[u8], theirs: &[Vec<u8>]) {
        self.asked += 1;
        // Addresses that are not needed are a server's choice.
        for additional in [true, false] {
            let all: Vec<_> = theirs.iter().map(|answer| essence(answer, additional)).collect();
            if !all.iter().all(|answer| *answer == all[0]) {
                continue;
            }
            self.agreed += usize::from(!additional);
            let own = essence(ours, additional);
            if own != all[0] {
                let _ = writeln!(self.differences, "{question}\n  ours:   {own:#?}\n  theirs: {:#?}", all[0]);
                return;
            }
        }
    }
}

#[test]
fn where_the_references_agree_this_server_agrees() {
    let folder = tempfile::tempdir().unwrap();
    let mut zones = Vec::new();
    for seed in seeds() {
        let ways = [Signed::No, Signed::Nsec, Signed::Nsec3 { opt_out: seed % 2 == 0 }];
        for (letter, signed) in ["u", "n", "h"].into_iter().zip(ways) {
            let origin = format!("{letter}{seed}.test.");
            let zone = Generated::new(&origin, seed);
            std::fs::write(folder.path().join(format!("{origin}zone")), zone.text(signed)).unwrap();
            zones.push((origin, zone, signed));
        }
    }
    let origins: Vec<String> = zones.iter().map(|(origin, ..)| origin.clone()).collect();
    let references = start_all(folder.path(), &origins);
    if references.len() < 2 {
        return eprintln!("skipped: needs two of the servers");
    }
    let source =
        |origin: &String| Source { origin: name(origin), file: folder.path().join(format!("{origin}zone")) };
    let store = Store::open(origins.iter().map(source).collect());
    let store = store.unwrap_or_else(|problems| panic!("{problems:#?}"));
    let shared = Arc::new(Shared::new(store, Limits::default()));
    let ours = Server::start(&["127.0.0.1:0".parse().unwrap()], 1, &shared).unwrap();
    let mut own = Client::new(ours.addresses()[0]);
    let mut clients: Vec<_> = references.iter().map(|server| Client::new(server.address)).collect();
    let mut outcome = Outcome::default();
    for (origin, zone, signed) in &zones {
        references.iter().for_each(|server| server.wait_for(&query(origin, "SOA")));
        let (mut labels, mut queries) = (Vec::new(), Vec::new());
        for question in zone.questions(7, NAMES) {
            let types = ["A", "TXT", "DS", "CNAME", "SOA", "NSEC", "RRSIG"];
            let all = question.starts_with("types.").then(|| zone.types()).into_iter().flatten();
            for rtype in types.into_iter().chain(all) {
                labels.push(format!("{question} {rtype}"));
                queries.push(query(&question, rtype));
                if *signed != Signed::No {
                    labels.push(format!("{question} {rtype} with DO"));
                    queries.push(secure_query(&question, rtype));
                }
            }
        }
        let theirs: Vec<_> = clients.iter_mut().map(|client| client.ask_all(&queries)).collect();
        for (index, ours) in own.ask_all(&queries).into_iter().enumerate() {
            let theirs: Vec<_> = theirs.iter().map(|answers| answers[index].clone()).collect();
            outcome.compare(&labels[index], &ours, &theirs);
        }
    }
    let names: Vec<_> = references.iter().map(|server| server.name).collect();
    let Outcome { asked, agreed, differences } = outcome;
    assert!(differences.is_empty(), "{}\nof {agreed} questions", &differences[..differences.len().min(6000)]);
    // Otherwise the test compares little.
    assert!(agreed * 2 > asked, "{names:?} agree on {agreed} of {asked} questions");
    println!("{names:?} agree on {agreed} of {asked} questions, and this server with them");
}
