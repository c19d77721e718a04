//! Tests that `contrib/tailwater.schema.json`, by which editors complete and check a configuration,
//! has the keys, names and defaults of the parser.
//!
//! Owns the comparison only. The keys of the parser are those that it lists when it refuses one.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Config;
use tailwater_sched::alloc::PolicyName;

/// A key that is like no other, so that the parser lists all.
const NO_KEY: &str = "zzzzzzzzzzzz";

fn schema() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/tailwater.schema.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns the keys that the parser permits in the table that begins with `heading`.
fn parsed_keys(heading: &str) -> BTreeSet<String> {
    let error = Config::from_toml(&format!("{heading}\n{NO_KEY} = 1")).unwrap_err().to_string();
    let (_, listed) = error.split_once(&format!("unknown key `{NO_KEY}`")).unwrap();
    listed.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_table_of_the_schema_has_the_keys_of_the_parser() {
    let schema = schema();
    for (heading, place) in [
        ("", ""),
        ("[ix]", "/properties/ix"),
        ("[[ix.steps]]", "/properties/ix/properties/steps/items"),
        ("[reserve]", "/properties/reserve"),
        ("[ports]", "/properties/ports"),
        ("[firewall]", "/properties/firewall"),
        ("[[firewall.rule]]", "/properties/firewall/properties/rule/items"),
        ("[[firewall.limit]]", "/properties/firewall/properties/limit/items"),
        ("[[grant]]", "/properties/grant/items"),
    ] {
        let table = schema.pointer(place).unwrap();
        let keys: BTreeSet<String> = table["properties"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys, parsed_keys(heading), "{heading}");
        assert_eq!(table["additionalProperties"], false, "{heading}: a misspelt key is refused");
        for (key, value) in table["properties"].as_object().unwrap() {
            assert!(value["description"].is_string(), "{heading} {key}");
        }
    }
}

#[test]
fn the_policies_of_the_schema_are_those_of_an_iokernel() {
    let live = PolicyName::ALL.into_iter().filter(|policy| policy.is_live());
    let live: BTreeSet<&str> = live.map(PolicyName::as_str).collect();
    let schema = schema();
    let named = schema["properties"]["policy"]["enum"].as_array().unwrap();
    assert_eq!(named.iter().filter_map(Value::as_str).collect::<BTreeSet<_>>(), live);
}

#[test]
fn the_defaults_of_the_schema_are_those_of_the_parser() {
    // As JSON, to be compared.
    let parser = serde_json::to_value(Config::default()).unwrap();
    let schema = schema();
    let mut compared = 0;
    for table in ["", "/ix", "/reserve", "/firewall"] {
        let place = if table.is_empty() { String::new() } else { format!("/properties{table}") };
        for (key, described) in schema.pointer(&place).unwrap()["properties"].as_object().unwrap() {
            // An empty list is left out when it is written.
            let is_empty_list = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
            if let Some(default) = described.get("default").filter(|value| !is_empty_list(value)) {
                assert_eq!(parser.pointer(&format!("{table}/{key}")), Some(default), "{table} {key}");
                compared += 1;
            }
        }
    }
    assert!(compared > 20, "{compared}");
}

#[test]
fn numbers_beyond_the_bounds_of_the_schema_are_refused_by_the_parser_and_the_bounds_are_not() {
    let schema = schema();
    for (key, described) in schema["properties"].as_object().unwrap() {
        let bound = |name| described.get(name).and_then(Value::as_i64);
        let read = |number: i64| Config::from_toml(&format!("{key} = {number}"));
        // The network of the defaults has bits after a shorter prefix.
        if let Some(least) = bound("minimum").filter(|_| key != "prefix-len") {
            assert!(read(least).is_ok() && read(least - 1).is_err(), "{key} >= {least}");
        }
        if let Some(most) = bound("maximum") {
            assert!(read(most).is_ok() && read(most + 1).is_err(), "{key} <= {most}");
        }
    }
}
