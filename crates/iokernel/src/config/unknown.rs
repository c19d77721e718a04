//! Messages about names in the configuration that are not known, and values of the wrong type.
//!
//! Owns the choice of the name that was probably meant, or of the table that it belongs into. The
//! parser's own message lists all names there are, forty in some tables, which hides the one that
//! is wanted. Of values it names types of this language, which are put in words.

use super::Config;

/// Least length of a beginning that stands for the whole name.
const BEGINNING: usize = 3;

/// How the parser begins what it says of a key that it does not know.
const UNKNOWN_KEY: &str = "unknown field";

/// A key that no table has.
const NO_KEY: &str = "-";

/// What the parser says of a value, and the same for people.
const IN_WORDS: [(&str, &str); 5] = [
    ("expected u8", "expected a whole number from 0 to 255, without quotes"),
    ("expected u16", "expected a whole number from 0 to 65535, without quotes"),
    ("expected u32", "expected a whole number from 0 to 4294967295, without quotes"),
    ("expected u64", "expected a whole number from 0 on, without quotes"),
    ("invalid IPv4 address syntax", "not an IPv4 address; write it alone, for instance 10.77.0.0"),
];

/// Returns the parser's message about a text of the configuration; with the name that was probably
/// meant in the place of all names, if there is one.
pub(super) fn explain(error: &toml::de::Error) -> String {
    let (text, message) = (error.to_string(), error.message());
    if let Some((technical, words)) = IN_WORDS.into_iter().find(|(technical, _)| message.ends_with(technical))
    {
        return text.replace(technical, words);
    }
    let mut names = message.split('`').skip(1).step_by(2);
    let (Some(given), true) = (names.next(), message.starts_with("unknown ")) else { return text };
    let is_key = message.starts_with(UNKNOWN_KEY);
    if let Some(place) = is_key.then(|| place_of(given)).flatten() {
        return text.replace(message, &format!("the key `{given}` belongs {place}"));
    }
    let what = if is_key { "key" } else { "value" };
    match nearest(given, names) {
        Some(meant) => text.replace(message, &format!("unknown {what} `{given}`; did you mean `{meant}`?")),
        None => text.replace(UNKNOWN_KEY, "unknown key"),
    }
}

/// Returns where a key belongs that stands in another place; `None` if there is none of this name.
/// The parser knows: it is asked for the key, without a value, in each table.
fn place_of(key: &str) -> Option<String> {
    let asked = |heading: &str, key: &str| {
        let error = toml::from_str::<Config>(&format!("{heading}\n{key:?} = {{}}")).err();
        error.map_or_else(String::new, |error| error.message().to_owned())
    };
    let knows = |heading: &str| !asked(heading, key).starts_with(UNKNOWN_KEY);
    if knows("") {
        return Some("before the first table".to_owned());
    }
    let all = asked("", NO_KEY);
    let headings = all.split('`').skip(3).step_by(2).map(|name| format!("[{name}]"));
    let tables = headings.filter(|heading| asked(heading, NO_KEY).starts_with(UNKNOWN_KEY) && knows(heading));
    let tables: Vec<String> = tables.collect();
    (!tables.is_empty()).then(|| format!("into the table {}", tables.join(" or ")))
}

/// Returns the name that `given` is a misspelling of, if there is one: with up to a third of its
/// characters wrong, cut short, or with a word before it.
fn nearest<'a>(given: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let plain = given.to_ascii_lowercase().replace('_', "-");
    let distance = |name: &str| {
        if plain.len() >= BEGINNING && name.starts_with(&plain) {
            0
        } else if plain.ends_with(&format!("-{name}")) {
            // `managed-core` is rather `managed-cores` than `core`.
            1
        } else {
            strsim::damerau_levenshtein(&plain, name)
        }
    };
    let rated = names.map(|name| (distance(name), name));
    let close = rated.filter(|(distance, name)| *distance <= (name.len() / 3).max(1));
    close.min_by_key(|&(distance, _)| distance).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn an_unknown_name_is_refused_with_its_place_and_the_nearest_one() {
        for (text, given, meant) in [
            ("mtu = 1500\ncede-grace = 10", "cede-grace", "cede-grace-us"),
            ("managed_cores = [1]", "managed_cores", "managed-cores"),
            ("iokernel-core = 0", "iokernel-core", "core"),
            ("managed-core = \"1\"", "managed-core", "managed-cores"),
            ("[ports]\nxpd = \"eth1\"", "xpd", "xdp"),
            ("[[grant]]\nuser = \"alice\"", "user", "users"),
            ("[firewall]\ninrgess = \"deny\"", "inrgess", "ingress"),
            ("priority = \"sesion\"", "sesion", "session"),
        ] {
            let error = Config::from_toml(text).unwrap_err().to_string();
            let line = format!("line {}", text.lines().count());
            let question = format!("`{given}`; did you mean `{meant}`?");
            assert!(error.contains(&line) && error.contains(&question), "{text}: {error}");
            assert!(!error.contains("expected one of"), "{error}");
        }
    }

    #[test]
    fn a_key_in_the_wrong_table_is_refused_with_its_own() {
        for (text, part) in [
            ("tap = \"tw0\"", "the key `tap` belongs into the table [ports]"),
            ("[ports]\ncore = 0", "the key `core` belongs before the first table"),
            ("state-file = \"/run/x\"", "[reserve]"),
        ] {
            let error = Config::from_toml(text).unwrap_err().to_string();
            let line = format!("line {}", text.lines().count());
            assert!(error.contains(part) && error.contains(&line), "{text}: {error}");
        }
    }

    #[test]
    fn a_value_of_the_wrong_type_is_refused_without_types_of_the_language() {
        for (text, part) in [
            ("core = \"0\"", "from 0 to 65535, without quotes"),
            ("core = 70000", "from 0 to 65535"),
            ("prefix-len = 300", "from 0 to 255"),
            ("allocation-interval-us = \"5us\"", "a whole number from 0 on"),
            ("network = \"10.77.0.0/16\"", "write it alone, for instance 10.77.0.0"),
        ] {
            let error = Config::from_toml(text).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("line 1"), "{text}: {error}");
        }
    }

    #[test]
    fn a_name_that_is_like_no_other_is_refused_with_all_of_them() {
        let error = Config::from_toml("colour = \"red\"").unwrap_err().to_string();
        assert!(error.contains("unknown key `colour`") && error.contains("`managed-cores`"), "{error}");
    }
}
