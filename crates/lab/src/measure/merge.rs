//! Median, lowest and highest of each number in the reports of several rounds.
//!
//! Owns the rule: reports are trees of one shape, and a number is compared with those at the same
//! place in the other rounds. Anything that is no number is that of the first round. Pure.

use serde_json::{Map, Value};

/// The numbers of several rounds; each tree has the shape of one report.
#[derive(Debug, Clone, PartialEq)]
pub struct Merged {
    pub median: Value,
    pub lowest: Value,
    pub highest: Value,
}

/// Merges the reports of all rounds; `None` without rounds. The median of an even number of rounds
/// is the upper of the middle two. A round that lacks a number does not count for it.
pub fn merge(rounds: &[Value]) -> Option<Merged> {
    let first = rounds.first()?;
    let pick = |choose: fn(&[&Value]) -> Value| tree(first, &rounds.iter().collect::<Vec<_>>(), choose);
    Some(Merged {
        median: pick(|sorted| sorted[sorted.len() / 2].clone()),
        lowest: pick(|sorted| sorted[0].clone()),
        highest: pick(|sorted| sorted[sorted.len() - 1].clone()),
    })
}

/// Returns the tree of `shape` in which each number, or truth value, is the chosen one of `rounds`.
fn tree(shape: &Value, rounds: &[&Value], choose: fn(&[&Value]) -> Value) -> Value {
    match shape {
        Value::Object(_) => {
            // A round may lack what another has.
            let fields = rounds.iter().filter_map(|round| round.as_object()).flatten();
            let mut merged = Map::new();
            for (key, shape) in fields {
                if !merged.contains_key(key) {
                    let rounds: Vec<&Value> = rounds.iter().filter_map(|round| round.get(key)).collect();
                    let shape = rounds.iter().find(|value| !value.is_null()).unwrap_or(&shape);
                    merged.insert(key.clone(), tree(shape, &rounds, choose));
                }
            }
            Value::Object(merged)
        }
        Value::Array(items) => {
            let item = |(index, shape): (usize, &Value)| {
                let rounds: Vec<&Value> = rounds.iter().filter_map(|round| round.get(index)).collect();
                tree(shape, &rounds, choose)
            };
            Value::Array(items.iter().enumerate().map(item).collect())
        }
        // A number that the first round lacks is null there.
        Value::Number(_) | Value::Null | Value::Bool(_) => {
            let rank = |value: &Value| value.as_f64().or(value.as_bool().map(f64::from));
            let mut ranked: Vec<(f64, &Value)> =
                rounds.iter().filter_map(|&value| Some((rank(value)?, value))).collect();
            ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
            let sorted: Vec<&Value> = ranked.into_iter().map(|(_, value)| value).collect();
            if sorted.is_empty() { shape.clone() } else { choose(&sorted) }
        }
        Value::String(_) => shape.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_number_is_compared_with_those_at_its_place() {
        let round = |p99: f64, count: u64| json!({"rows": [{"op": "yield", "p99": p99}], "count": count});
        let merged = merge(&[round(3.5, 10), round(1.5, 30), round(2.5, 20)]).unwrap();
        assert_eq!(merged.median, round(2.5, 20));
        assert_eq!(merged.lowest, round(1.5, 10));
        assert_eq!(merged.highest, round(3.5, 30));
    }

    #[test]
    fn a_round_without_a_number_does_not_count_for_it() {
        let rounds =
            [json!({"p50": null, "met": false}), json!({"p50": 2, "met": true}), json!({"met": true})];
        let merged = merge(&rounds).unwrap();
        assert_eq!(merged.median, json!({"p50": 2, "met": true}));
        assert_eq!(merged.lowest, json!({"p50": 2, "met": false}));
        assert!(merge(&[]).is_none());
        let rounds = [json!({"stalled": null}), json!({"stalled": {"p50": 3}, "more": 1})];
        assert_eq!(merge(&rounds).unwrap().median, json!({"stalled": {"p50": 3}, "more": 1}));
    }
}
