//! Master files: what is accepted, and the messages about errors.

use crate::common::{ask, name};
use proptest::prelude::*;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tailwater_dns::catalog::Catalog;
use tailwater_dns::zone::Zone;
use tailwater_dns::zone::read::{MAX_DEPTH, parse_zone, read_zone};

/// The records that every zone needs, in two lines.
const HEAD: &str = "@ 60 SOA ns.example.net. h 1 2 3 4 5\n@ 60 NS ns.example.net.\n";

/// Reads zone `example.` from the file `main` of `files`.
fn read(files: &[(&str, &str)]) -> Result<Zone, Vec<String>> {
    let files: HashMap<&str, &str> = files.iter().copied().collect();
    let mut open = |path: &Path| {
        let text = path.to_str().and_then(|path| files.get(path));
        text.map(|text| text.as_bytes().to_vec()).ok_or(io::Error::from(io::ErrorKind::NotFound))
    };
    read_zone(&name("example."), Path::new("zones/main"), &mut open)
        .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

fn problems(body: &str) -> Vec<String> {
    read(&[("zones/main", &format!("{HEAD}{body}"))]).expect_err("something is wrong")
}

#[test]
fn all_forms_of_entries_are_understood() {
    let text = r#"; a comment
$TTL 300
@   IN SOA ns hostmaster.example. ( 1 ; serial
        3600 600
        86400 60 )
    IN NS ns
ns  A 192.0.2.1
    30 IN AAAA 2001:db8::1
a   IN 40 TXT "two words" one "with \"quotes\" and ; and (" \065\.b
$ORIGIN sub.example.
b   A 192.0.2.2
c.example. A 192.0.2.3
$ORIGIN deeper
d   A 192.0.2.4
$TTL 70
e   A 192.0.2.5
\*.f A 192.0.2.6
g   TYPE1 \# 4 c0000207
h   CLASS1 A 192.0.2.8"#;
    let zone = parse_zone(&name("example."), text).unwrap_or_else(|problems| panic!("{problems:#?}"));
    let zones = Catalog::new([Arc::new(zone)]);
    let table = [
        ("ns.example.", "A", "an ns.example. 300 A 192.0.2.1"),
        ("ns.example.", "AAAA", "an ns.example. 30 AAAA 2001:db8::1"),
        (
            "a.example.",
            "TXT",
            r#"an a.example. 40 TXT "two words" "one" "with \"quotes\" and ; and (" "A.b""#,
        ),
        ("b.sub.example.", "A", "an b.sub.example. 300 A 192.0.2.2"),
        ("c.example.", "A", "an c.example. 300 A 192.0.2.3"),
        ("d.deeper.sub.example.", "A", "an d.deeper.sub.example. 300 A 192.0.2.4"),
        ("e.deeper.sub.example.", "A", "an e.deeper.sub.example. 70 A 192.0.2.5"),
        ("x.f.deeper.sub.example.", "A", "an x.f.deeper.sub.example. 70 A 192.0.2.6"),
        ("g.deeper.sub.example.", "A", "an g.deeper.sub.example. 70 A 192.0.2.7"),
        ("h.deeper.sub.example.", "A", "an h.deeper.sub.example. 70 A 192.0.2.8"),
    ];
    for (question, rtype, wanted) in table {
        assert_eq!(ask(&zones, question, rtype), ["NOERROR aa", wanted], "{question}");
    }
}

#[test]
fn files_include_others_beside_them_and_keep_their_own_origin() {
    let main = format!("$TTL 77\n{HEAD}$INCLUDE parts/one\n$INCLUDE parts/one sub\nafter A 192.0.2.9\n");
    let zone = read(&[
        ("zones/main", &main),
        ("zones/parts/one", "$INCLUDE two\n$ORIGIN changed\nx A 192.0.2.2"),
        ("zones/parts/two", "y A 192.0.2.1"),
    ]);
    let zones = Catalog::new([Arc::new(zone.unwrap_or_else(|problems| panic!("{problems:#?}")))]);
    for (question, address) in [
        ("y.example.", "192.0.2.1"),
        ("x.changed.example.", "192.0.2.2"),
        ("y.sub.example.", "192.0.2.1"),
        ("x.changed.sub.example.", "192.0.2.2"),
        ("after.example.", "192.0.2.9"),
    ] {
        assert_eq!(ask(&zones, question, "A")[1], format!("an {question} 77 A {address}"));
    }
}

#[test]
fn names_of_included_files_may_have_quotation_marks_and_escapes() {
    for (word, file) in [
        ("\"part\"", "zones/part"),
        ("\"part 1\"", "zones/part 1"),
        ("part\\ 1", "zones/part 1"),
        ("\"a;(\\\"b\"", "zones/a;(\"b"),
        ("t\u{e9}il", "zones/t\u{e9}il"),
        ("\"/else/where\"", "/else/where"),
    ] {
        let main = format!("$TTL 60\n{HEAD}$INCLUDE {word} @ ; \u{e9}\n$INCLUDE {word} sub\n");
        let zone = read(&[("zones/main", &main), (file, "a A 192.0.2.1\n")]);
        let zone = zone.unwrap_or_else(|problems| panic!("{word}: {problems:#?}"));
        let zones = Catalog::new([Arc::new(zone)]);
        for question in ["a.example.", "a.sub.example."] {
            assert_eq!(ask(&zones, question, "A")[1], format!("an {question} 60 A 192.0.2.1"), "{word}");
        }
    }
}

#[test]
fn an_at_sign_in_data_is_the_origin() {
    let text = "$TTL 60\n@ SOA @ @ 1 2 3 4 5\n@ NS @\n@ A 192.0.2.1\n@ MX 1 @\n@ TXT @ \"@\"\n\
                alias CNAME @ ; the zone\nwith CNAME (\n@ )\nother CNAME \\@\n\
                $ORIGIN sub\np PTR @\n$ORIGIN @\nq 30 IN PTR @\n$ORIGIN a\\.b.example.\nr PTR @\n";
    let zone = parse_zone(&name("example."), text).unwrap_or_else(|problems| panic!("{problems:#?}"));
    let zones = Catalog::new([Arc::new(zone)]);
    for (question, rtype, wanted) in [
        ("example.", "SOA", "an example. 60 SOA example. example. 1 2 3 4 5"),
        ("example.", "NS", "an example. 60 NS example."),
        ("example.", "MX", "an example. 60 MX 1 example."),
        ("example.", "TXT", "an example. 60 TXT \"@\" \"@\""),
        ("alias.example.", "CNAME", "an alias.example. 60 CNAME example."),
        ("with.example.", "CNAME", "an with.example. 60 CNAME example."),
        ("other.example.", "CNAME", "an other.example. 60 CNAME @.example."),
        ("p.sub.example.", "PTR", "an p.sub.example. 60 PTR sub.example."),
        ("q.sub.example.", "PTR", "an q.sub.example. 30 PTR sub.example."),
        ("r.a\\.b.example.", "PTR", "an r.a\\.b.example. 60 PTR a\\.b.example."),
    ] {
        let answer = ask(&zones, question, rtype);
        assert!(answer.iter().any(|line| line == wanted), "{question} {rtype}: {answer:#?}");
    }
}

#[test]
fn octets_above_127_stand_for_themselves() {
    let text = "$TTL 60 ; \u{e9}\n@ SOA ns.example.net. h 1 2 3 4 5 ; \u{e9}\n@ NS ns.example.net.\n\
                \u{e9} CNAME \u{e9}.x\nt TXT \"\u{e9}\" ; \u{e9}\n ; \u{e9}\n";
    let zone = parse_zone(&name("example."), text).unwrap_or_else(|problems| panic!("{problems:#?}"));
    let zones = Catalog::new([Arc::new(zone)]);
    let wanted = r"an \195\169.example. 60 CNAME \195\169.x.example.";
    assert_eq!(ask(&zones, r"\195\169.example.", "CNAME")[1], wanted);
    assert_eq!(ask(&zones, "t.example.", "TXT")[1], r#"an t.example. 60 TXT "\195\169""#);
}

#[test]
fn problems_name_file_line_and_remedy() {
    let table: &[(&str, &[&str])] = &[
        ("a CNAME b\na A 192.0.2.1\n", &["zones/main:3: a.example has a CNAME and other records (A)"]),
        ("a CNAME b\na CNAME c\n", &["zones/main:4: a.example has several CNAME records: keep one"]),
        ("\n\na.example.org. A 192.0.2.1\n", &["zones/main:5: a.example.org is not within the zone example"]),
        ("@ 60 SOA ns.example.net. h 2 2 3 4 5\n", &["zones/main:3: a second SOA record: keep one"]),
        ("a SOA ns h 2 2 3 4 5\n", &["zones/main:3: a SOA record at a.example, which is not"]),
        ("*.a NS ns.example.net.\n", &["zones/main:3: NS records at the wildcard *.a.example"]),
        ("a NS ns.a\n", &["zones/main:3: ns.a.example, a name server of a.example, has no A or AAAA"]),
        (
            "@ NS alias\nalias CNAME a\n",
            &["zones/main:3: alias.example, a name server of example, is an alias"],
        ),
        ("a (\n TXT b\n)\nb CH A 192.0.2.1\n", &["zones/main:6: not understood"]),
        ("a TXT (\n b\n ) \nb A 192.0.2\n", &["zones/main:6: not understood"]),
        ("b A 192.0.2.1 ; fine\n c\n", &["zones/main:4: not understood"]),
        ("b FOO 192.0.2.1\n", &["zones/main:3: not understood"]),
        ("$FOO\n", &["zones/main:3: not understood"]),
        ("a A 192.0.2.1\n$TTL 1y\nb A 192.0.2.1\n", &["zones/main:4: not understood"]),
        ("b TXT (\n c\n", &["zones/main:3: the file ends within an entry"]),
        ("b TXT \"c\n", &["zones/main:3: the file ends within"]),
        ("a DNAME b\na DNAME c\n", &["zones/main:4: a.example has several DNAME records: keep one"]),
        (
            "a DNAME b\na NS ns.example.net.\n",
            &["zones/main:3: a.example has a DNAME record and is delegated"],
        ),
        ("a DNAME b\na CNAME c\n", &["zones/main:4: a.example has a CNAME and other records (DNAME)"]),
        (
            "a NSEC3 1 0 0 - 00000000000000000000000000000000 A\n",
            &["zones/main:3: a.example is not the name of"],
        ),
        ("@ NSEC3PARAM 1 0 151 -\n", &["zones/main: 151 iterations of NSEC3"]),
        ("a LOC 1 N\n", &["zones/main:3: not understood: the data end too early"]),
        ("a AFSDB 65536 b\n", &["zones/main:3: not understood: `65536` instead of a number up to 65535"]),
        ("a TYPE41 \\# 0\n", &["zones/main:3: OPT is not a record type of zones"]),
        ("a TYPE1 \\# 3 010203\n", &["zones/main:3: the data of this A record are malformed"]),
        ("a..b A 192.0.2.1\n", &["zones/main:3: a name with an empty part"]),
        ("$ORIGIN a..b\nc A 192.0.2.1\n", &["zones/main:4: a name with an empty part"]),
        ("a TXT \\# 0\n", &["zones/main:3: the data of this TXT record are malformed"]),
        ("$INCLUDE\n", &["zones/main:3: not understood: no file is named"]),
        ("$INCLUDE \"no file\"\n", &["zones/no file: cannot read it"]),
        ("a MX 1 a..b\n", &["zones/main:3: the data of this MX record are malformed"]),
        ("$INCLUDE no\n", &["zones/no: cannot read it"]),
        // Several at a time.
        (
            "a.org. A 192.0.2.1\nb CNAME c\nb A 192.0.2.1\n",
            &["zones/main:3: a.org is not", "zones/main:4: b.exam"],
        ),
    ];
    for (body, wanted) in table {
        let said = problems(body);
        let fits =
            said.len() == wanted.len() && said.iter().zip(*wanted).all(|(said, want)| said.starts_with(want));
        assert!(fits, "{body:?}\nsaid:   {said:#?}\nwanted: {wanted:#?}");
    }
}

#[test]
fn a_zone_without_soa_or_ns_is_not_served() {
    let said = read(&[("zones/main", "a 60 A 192.0.2.1\n")]).expect_err("both are missing");
    assert_eq!(said.len(), 2, "{said:#?}");
    assert!(said[0].starts_with("zones/main: the zone example has no SOA record"), "{said:#?}");
    assert!(said[1].starts_with("zones/main: the zone example has no NS record"), "{said:#?}");
    assert_eq!(read(&[]).expect_err("no file").len(), 1);
}

#[test]
fn a_file_that_includes_itself_ends() {
    let main = format!("{HEAD}$INCLUDE main\n");
    let said = read(&[("zones/main", &main)]).expect_err("it never ends");
    assert_eq!(said.len(), 1, "{said:#?}");
    assert!(said[0].starts_with("zones/main:3: includes within includes"), "{said:#?}");
    assert!(said[0].contains(&MAX_DEPTH.to_string()));
}

#[test]
fn more_records_than_a_message_holds_are_a_problem() {
    let mut body = String::new();
    for i in 0..4100 {
        body += &format!("big 60 A 10.0.{}.{}\n", i / 256, i % 256);
    }
    let said = problems(&body);
    assert!(said.len() == 1 && said[0].contains("fit into no message"), "{said:#?}");
}

#[test]
fn times_of_one_set_are_the_lowest_and_equal_records_are_one() {
    let body =
        format!("{HEAD}a 50 A 192.0.2.1\na 40 A 192.0.2.2\na 60 A 192.0.2.1\nhigh 4294967295 A 192.0.2.1\n");
    let zone = read(&[("zones/main", &body)]).unwrap_or_else(|problems| panic!("{problems:#?}"));
    let zones = Catalog::new([Arc::new(zone)]);
    assert_eq!(
        ask(&zones, "a.example.", "A"),
        ["NOERROR aa", "an a.example. 40 A 192.0.2.1", "an a.example. 40 A 192.0.2.2"]
    );
    assert_eq!(ask(&zones, "high.example.", "A")[1], "an high.example. 0 A 192.0.2.1");
}

/// Words that mean something in a master file, and some that do not.
const WORDS: [&str; 34] = [
    "@",
    "a",
    "b.example.",
    "*",
    "\\065",
    "\\",
    "\\.",
    ".",
    "..",
    "$TTL",
    "$ORIGIN",
    "$INCLUDE",
    "-",
    "300",
    "IN",
    "CH",
    "A",
    "NS",
    "SOA",
    "TXT",
    "MX",
    "CAA",
    "SRV",
    "TYPE1",
    "\\#",
    "4",
    "c0000201",
    "192.0.2.1",
    "\"",
    "(",
    ")",
    ";",
    "\n",
    "\u{e9}",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn no_text_breaks_the_reader(words in prop::collection::vec((prop::sample::select(&WORDS[..]), 0usize..4), 0..60)) {
        let spaced = words.iter().map(|(word, space)| format!("{word}{}", ["", " ", " ", "\n"][*space]));
        let text: String = spaced.collect();
        // Any zone, or problems.
        let _ = parse_zone(&name("example."), &text);
        let _ = parse_zone(&name("example."), &format!("{HEAD}{text}"));
    }
}
