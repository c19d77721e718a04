//! Look-up against a model without trees: a list of records, and the definitions of RFC 1034 and
//! RFC 4592 word for word.

use crate::common::{ask, catalog};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The contents of a name of the generated zone; names are labels, leftmost first, below `z.`.
#[derive(Debug, Clone)]
enum Holds {
    Address,
    Text,
    Both,
    Alias(Vec<&'static str>),
    Delegation,
}

type Labels = Vec<&'static str>;
type Records = BTreeMap<Labels, Holds>;

fn labels(min: usize) -> impl Strategy<Value = Labels> {
    prop::collection::vec(prop::sample::select(&["a", "b", "*", "c"][..]), min..4)
}

fn records() -> impl Strategy<Value = Records> {
    let holds = prop_oneof![
        3 => Just(Holds::Address),
        2 => Just(Holds::Text),
        1 => Just(Holds::Both),
        2 => labels(1).prop_map(Holds::Alias),
        1 => Just(Holds::Delegation),
    ];
    prop::collection::btree_map(labels(1), holds, 0..10).prop_map(|mut records| {
        // A delegation at a wildcard has no meaning.
        records.retain(|owner, holds| owner[0] != "*" || !matches!(holds, Holds::Delegation));
        records
    })
}

fn full(name: &[&str]) -> String {
    name.iter().map(|label| format!("{label}.")).collect::<String>() + "z."
}

fn text(records: &Records) -> String {
    let mut text = "@ 9 SOA ns.x. h.x. 1 2 3 4 5\n@ 9 NS ns.x.\n".to_owned();
    for (owner, holds) in records {
        let owner = full(owner);
        match holds {
            Holds::Address => text += &format!("{owner} 9 A 192.0.2.1\n"),
            Holds::Text => text += &format!("{owner} 9 TXT t\n"),
            Holds::Both => text += &format!("{owner} 9 A 192.0.2.1\n{owner} 9 TXT t\n"),
            Holds::Alias(target) => text += &format!("{owner} 9 CNAME {}\n", full(target)),
            Holds::Delegation => text += &format!("{owner} 9 NS ns.x.\n"),
        }
    }
    text
}

/// RFC 4592, section 2.2.2: a name exists if it or a name below it has records. The zone's own
/// exists.
fn exists(records: &Records, name: &[&str]) -> bool {
    name.is_empty() || records.keys().any(|owner| owner.ends_with(name))
}

/// Returns the answer as [`crate::common::show`] shows it.
fn model(records: &Records, question: &[&'static str], rtype: &str) -> Vec<String> {
    const SOA: &str = "ns z. 5 SOA ns.x. h.x. 1 2 3 4 5";
    let (mut name, mut answer, mut passed) = (question.to_vec(), Vec::new(), Vec::new());
    loop {
        let head = |code: &str| vec![code.to_owned()];
        // The delegation nearest to the apex.
        let cut = (0..name.len())
            .rev()
            .map(|at| &name[at..])
            .find(|above| matches!(records.get(*above), Some(Holds::Delegation)));
        if let Some(cut) = cut {
            let code = if answer.is_empty() { "NOERROR" } else { "NOERROR aa" };
            return [head(code), answer, vec![format!("ns {} 9 NS ns.x.", full(cut))]].concat();
        }
        let source = if exists(records, &name) {
            name.clone()
        } else {
            // RFC 4592, section 3.3.1: the closest encloser, and the wildcard below it.
            let encloser = (0..=name.len()).map(|at| &name[at..]).find(|above| exists(records, above));
            let source = [&["*"], encloser.expect("the apex exists")].concat();
            if !exists(records, &source) {
                return [head("NXDOMAIN aa"), answer, vec![SOA.to_owned()]].concat();
            }
            source
        };
        let owner = full(&name);
        match (records.get(&source), rtype) {
            (Some(Holds::Address | Holds::Both), "A") => answer.push(format!("an {owner} 9 A 192.0.2.1")),
            (Some(Holds::Text | Holds::Both), "TXT") => answer.push(format!("an {owner} 9 TXT \"t\"")),
            (Some(Holds::Alias(target)), _) => {
                answer.push(format!("an {owner} 9 CNAME {}", full(target)));
                passed.push(name);
                name = target.clone();
                if !passed.contains(&name) {
                    continue;
                }
            }
            _ => answer.push(SOA.to_owned()),
        }
        return [head("NOERROR aa"), answer].concat();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn every_name_is_answered_as_the_definitions_say(
        records in records(),
        questions in prop::collection::vec(labels(0), 30),
        upper in any::<bool>(),
    ) {
        let text = text(&records);
        let zones = catalog(&[("z.", &text)]);
        // Every owner, and names around.
        for question in records.keys().filter(|owner| !owner.is_empty()).chain(questions.iter().filter(|q| !q.is_empty())) {
            for rtype in ["A", "TXT"] {
                let asked = if upper { full(question).to_uppercase() } else { full(question) };
                let said: Vec<_> = ask(&zones, &asked, rtype).iter().map(|line| line.to_lowercase()).collect();
                let wanted: Vec<_> =
                    model(&records, question, rtype).iter().map(|line| line.to_lowercase()).collect();
                prop_assert_eq!(said, wanted, "{} {}\n{}", asked, rtype, text);
            }
        }
    }
}
