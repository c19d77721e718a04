//! Answers of the server, beyond the examples of the standards.

use crate::common::generate::hash;
use crate::common::{ask, catalog, edns_query, query, reply, secure_query, show, without_servers};
use domain::base::Message;
use tailwater_dns::answer::{MAX_UDP, Transport, takes_hashes};
use tailwater_dns::catalog::Catalog;
use tailwater_dns::zone::check::MAX_RRSET;

const ZONE: &str = r#"
$TTL 300
@        SOA ns1 hostmaster 7 3600 600 86400 60
         NS  ns1
         NS  ns.elsewhere.org.
         MX  5 mail
         MX  10 mail
         CAA 0 issue "ca.example.net"
ns1      A   192.0.2.1
         AAAA 2001:db8::1
mail     A   192.0.2.2
www      CNAME web
web      A   192.0.2.3
loop1    CNAME loop2
loop2    CNAME loop1
self     CNAME self
*.loops  CNAME x.loops
*.stars  CNAME *.stars
*.steps  CNAME one.deep.steps
one.deep.steps CNAME two.deep.steps
*.deep.steps CNAME web
_sip._udp SRV 1 2 5060 mail
odd      TYPE65280 \# 4 0a0b0c0d
sub      NS  ns.sub
         NS  ns.elsewhere.org.
         DS  1 8 2 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
ns.sub   A   192.0.2.53
deep.sub A   192.0.2.54
alias    CNAME host.sub
"#;

const SOA: &str = "ns example.org. 60 SOA ns1.example.org. hostmaster.example.org. 7 3600 600 86400 60";

fn zones() -> Catalog {
    catalog(&[
        ("example.org.", ZONE),
        ("child.example.org.", "@ 60 SOA ns h 1 2 3 4 5\n NS ns\nns A 192.0.2.9\n"),
    ])
}

#[test]
fn every_type_is_served_and_hosts_come_with_their_addresses() {
    let zones = zones();
    let table: &[(&str, &str, &[&str])] = &[
        ("web.example.org.", "A", &["NOERROR aa", "an web.example.org. 300 A 192.0.2.3"]),
        ("ns1.example.org.", "AAAA", &["NOERROR aa", "an ns1.example.org. 300 AAAA 2001:db8::1"]),
        (
            "example.org.",
            "NS",
            &[
                "NOERROR aa",
                "an example.org. 300 NS ns1.example.org.",
                "an example.org. 300 NS ns.elsewhere.org.",
                "ar ns1.example.org. 300 A 192.0.2.1",
                "ar ns1.example.org. 300 AAAA 2001:db8::1",
            ],
        ),
        // The same host twice, and its address once.
        (
            "example.org.",
            "MX",
            &[
                "NOERROR aa",
                "an example.org. 300 MX 5 mail.example.org.",
                "an example.org. 300 MX 10 mail.example.org.",
                "ar mail.example.org. 300 A 192.0.2.2",
            ],
        ),
        (
            "_sip._udp.example.org.",
            "SRV",
            &[
                "NOERROR aa",
                "an _sip._udp.example.org. 300 SRV 1 2 5060 mail.example.org",
                "ar mail.example.org. 300 A 192.0.2.2",
            ],
        ),
        ("example.org.", "CAA", &["NOERROR aa", r#"an example.org. 300 CAA 0 issue "ca.example.net""#]),
        (
            "odd.example.org.",
            "TYPE65280",
            &["NOERROR aa", "an odd.example.org. 300 TYPE65280 \\# 4 0a 0b 0c 0d"],
        ),
        (
            "example.org.",
            "SOA",
            &[
                "NOERROR aa",
                "an example.org. 300 SOA ns1.example.org. hostmaster.example.org. 7 3600 600 86400 60",
            ],
        ),
        (
            "www.example.org.",
            "A",
            &[
                "NOERROR aa",
                "an www.example.org. 300 CNAME web.example.org.",
                "an web.example.org. 300 A 192.0.2.3",
            ],
        ),
    ];
    for (question, rtype, wanted) in table {
        assert_eq!(ask(&zones, question, rtype), *wanted, "{question} {rtype}");
    }
}

#[test]
fn aliases_that_lead_back_end() {
    let zones = zones();
    let loops = |question| ask(&zones, question, "A").len() - 1;
    assert_eq!(loops("loop1.example.org."), 2);
    assert_eq!(loops("self.example.org."), 1);
    assert_eq!(loops("y.loops.example.org."), 2, "the wildcard answers for its own target");
    assert_eq!(loops("x.stars.example.org."), 2, "`*.stars` is a name, too");
    assert_eq!(loops("x.steps.example.org."), 4, "a wildcard leads to another, and on");
    assert_eq!(
        ask(&zones, "x.steps.example.org.", "A")[3..],
        ["an two.deep.steps.example.org. 300 CNAME web.example.org.", "an web.example.org. 300 A 192.0.2.3"]
    );
}

#[test]
fn delegated_names_are_referred_with_glue_and_the_ds_record_is_the_parents() {
    let zones = zones();
    let referral = [
        "NOERROR",
        "ns sub.example.org. 300 NS ns.sub.example.org.",
        "ns sub.example.org. 300 NS ns.elsewhere.org.",
        "ar ns.sub.example.org. 300 A 192.0.2.53",
    ];
    for question in ["sub.example.org.", "deep.sub.example.org.", "no.deep.sub.example.org."] {
        assert_eq!(ask(&zones, question, "A"), referral, "{question}");
    }
    assert_eq!(ask(&zones, "sub.example.org.", "NS"), referral);
    let ds = ask(&zones, "sub.example.org.", "DS");
    assert!(ds[0] == "NOERROR aa" && ds[1].starts_with("an sub.example.org. 300 DS 1 "), "{ds:?}");
    // The parent is authoritative, although the child is served here too.
    assert_eq!(ask(&zones, "child.example.org.", "DS"), ["NXDOMAIN aa", SOA]);
    let aliased = ask(&zones, "alias.example.org.", "A");
    assert_eq!(aliased[..2], ["NOERROR aa", "an alias.example.org. 300 CNAME host.sub.example.org."]);
    assert_eq!(aliased[2..], referral[1..]);
}

#[test]
fn the_zone_with_the_longest_name_answers_and_others_are_refused() {
    let zones = zones();
    let soa = "ns child.example.org. 5 SOA ns.child.example.org. h.child.example.org. 1 2 3 4 5";
    assert_eq!(ask(&zones, "no.child.example.org.", "A"), ["NXDOMAIN aa", soa]);
    assert_eq!(ask(&zones, "no.example.org.", "A"), ["NXDOMAIN aa", SOA]);
    for question in ["org.", "example.com.", "xexample.org.", "."] {
        assert_eq!(ask(&zones, question, "A"), ["REFUSED"], "{question}");
    }
    assert_eq!(ask(&Catalog::default(), "example.org.", "A"), ["REFUSED"]);
}

#[test]
fn the_case_of_the_question_is_kept_and_does_not_matter() {
    let zones = zones();
    let answer = reply(&zones, &query("wWw.eXample.ORG.", "A"), Transport::Udp).unwrap();
    let question = Message::from_slice(&answer).unwrap().sole_question().unwrap();
    assert_eq!(question.qname().to_string(), "wWw.eXample.ORG");
    let lines = show(&answer);
    assert_eq!(lines[1], "an wWw.eXample.ORG. 300 CNAME web.eXample.ORG.");
}

#[test]
fn transfers_are_refused_and_messages_types_not_implemented() {
    let zones = zones();
    for (rtype, code) in
        [("AXFR", "REFUSED"), ("IXFR", "REFUSED"), ("MAILB", "NOTIMP"), ("TSIG", "NOTIMP"), ("OPT", "NOTIMP")]
    {
        assert_eq!(ask(&zones, "example.org.", rtype), [code], "{rtype}");
    }
    assert_eq!(ask(&zones, "example.org.", "ANY").len(), 2, "one set");
    assert_eq!(ask(&zones, "x.loops.example.org.", "ANY")[0], "NOERROR aa");
}

#[test]
fn malformed_messages_get_an_error_and_answers_get_none() {
    let zones = zones();
    let answer = |message: &[u8]| reply(&zones, message, Transport::Udp).map(|reply| show(&reply));
    let good = query("web.example.org.", "A");
    assert_eq!(answer(&good[..11]), None, "no header");
    let mut response = good.clone();
    response[2] |= 0x80;
    assert_eq!(answer(&response), None, "an answer");
    for count in [0, 2] {
        let mut questions = good.clone();
        questions[5] = count;
        assert_eq!(answer(&questions).unwrap(), ["FORMERR"], "{count} questions");
    }
    // An answer has an OPT record if the query has (RFC 6891, section 6.1.1).
    let mut opt = edns_query("web.example.org.", "A", 1232);
    let record = opt[good.len()..].to_vec();
    let mut none = [&opt[..12], &record].concat();
    none[5] = 0;
    assert_eq!(answer(&none).unwrap(), ["FORMERR", "ar OPT 1232"], "no question");
    opt[2] |= 5 << 3;
    assert_eq!(answer(&opt).unwrap(), ["NOTIMP", "ar OPT 1232"], "an update");
    assert_eq!(answer(&good[..good.len() - 1]).unwrap(), ["FORMERR"]);
    assert_eq!(answer(&[&good[..], b"x"].concat()).unwrap(), ["FORMERR"], "something after it");
    let mut update = good.clone();
    update[2] |= 5 << 3;
    let answer = reply(&zones, &update, Transport::Udp).unwrap();
    assert_eq!(show(&answer), ["NOTIMP"]);
    assert_eq!(answer[..2], update[..2], "the identifier");
    let mut chaos = good.clone();
    *chaos.last_mut().unwrap() = 3;
    assert_eq!(show(&reply(&zones, &chaos, Transport::Udp).unwrap()), ["REFUSED"]);
}

#[test]
fn flags_are_copied_or_cleared() {
    let zones = zones();
    let mut message = query("web.example.org.", "A");
    // RD, and all bits that a query must not set.
    message[2] |= 0x07;
    message[3] = 0xff;
    let answer = reply(&zones, &message, Transport::Udp).unwrap();
    // QR AA RD; no RA, Z, AD, CD.
    assert_eq!((answer[2], answer[3]), (0x85, 0));
}

#[test]
fn edns_is_answered_with_edns() {
    let zones = zones();
    let answer = |message: &[u8]| show(&reply(&zones, message, Transport::Udp).unwrap());
    let good = edns_query("web.example.org.", "A", 4096);
    let wanted = ["NOERROR aa", "an web.example.org. 300 A 192.0.2.3", "ar OPT 1232"];
    assert_eq!(without_servers(answer(&good)), wanted);
    assert_eq!(answer(&edns_query("example.com.", "A", 4096)), ["REFUSED", "ar OPT 1232"]);
    let at = good.len() - 11;
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut message = good.clone();
        change(&mut message);
        answer(&message)
    };
    assert_eq!(with(&|message| message[at + 6] = 1), ["BADVERS", "ar OPT 1232"]);
    // An unknown option, and one that is longer than the record.
    let option = |len: u8| {
        move |message: &mut Vec<u8>| {
            message[at + 10] = 6;
            message.extend([0xfd, 0xe9, 0, len, 1, 2]);
        }
    };
    assert_eq!(with(&option(2))[0], "NOERROR aa");
    assert_eq!(with(&option(3)), ["FORMERR"]);
    let second = |message: &mut Vec<u8>| {
        message[11] = 2;
        message.extend_from_within(at..);
    };
    assert_eq!(with(&second), ["FORMERR"]);
    // Not in the additional section, but in the answer or authority section.
    for section in [7, 9] {
        assert_eq!(
            with(&|message| {
                message[section] = 1;
                message[11] = 0;
            }),
            ["FORMERR"]
        );
    }
    // DO is copied (RFC 3225, section 3).
    let mut dnssec = good.clone();
    dnssec[at + 7] = 0x80;
    let reply = reply(&zones, &dnssec, Transport::Udp).unwrap();
    assert_eq!(reply[reply.len() - 4], 0x80);
}

#[test]
fn complete_answers_name_the_servers_of_the_zone() {
    const SERVERS: [&str; 2] =
        ["ns example.org. 300 NS ns1.example.org.", "ns example.org. 300 NS ns.elsewhere.org."];
    const ADDRESSES: [&str; 2] =
        ["ar ns1.example.org. 300 A 192.0.2.1", "ar ns1.example.org. 300 AAAA 2001:db8::1"];
    fn all(answer: &[&'static str]) -> Vec<&'static str> {
        [&["NOERROR aa"], answer, &SERVERS, &ADDRESSES].concat()
    }
    let zones = zones();
    let asked = |question, rtype| show(&reply(&zones, &query(question, rtype), Transport::Udp).unwrap());
    assert_eq!(asked("web.example.org.", "A"), all(&["an web.example.org. 300 A 192.0.2.3"]));
    assert_eq!(
        asked("www.example.org.", "A"),
        all(&["an www.example.org. 300 CNAME web.example.org.", "an web.example.org. 300 A 192.0.2.3"])
    );
    // Nothing twice.
    let own = asked("ns1.example.org.", "A");
    let wanted =
        [&["NOERROR aa", "an ns1.example.org. 300 A 192.0.2.1"], &SERVERS[..], &ADDRESSES[1..]].concat();
    assert_eq!(own, wanted);
    assert_eq!(asked("example.org.", "NS").len(), 5, "the servers, two addresses and no authority");
    // An alias to another place, an error, a delegation.
    for question in ["loop1.example.org.", "no.example.org.", "sub.example.org."] {
        assert!(!asked(question, "A").contains(&SERVERS[0].to_owned()), "{question}");
    }
    // In the root zone, whose name is shorter than a pointer.
    let root =
        catalog(&[(".", "@ 60 SOA ns h 1 2 3 4 5\n@ 60 NS ns\nns 60 A 192.0.2.9\na 60 A 192.0.2.1\n")]);
    let said = show(&reply(&root, &query("a.", "A"), Transport::Udp).unwrap());
    assert_eq!(said[1..3], ["an a. 60 A 192.0.2.1", "ns . 60 NS ns."]);
}

#[test]
fn names_below_a_dname_are_redirected() {
    let text = "$TTL 300\n@ SOA ns.example.net. h 7 3600 600 86400 60\n NS ns.example.net.\n\
        web A 192.0.2.3\nhost.web TXT t\nd DNAME web\n TXT own\nbelow.d A 192.0.2.4\naway DNAME example.org.\n\
        to CNAME host.d\none DNAME two\ntwo DNAME one\n";
    let long = "a".repeat(60);
    let text = format!("{text}long DNAME {long}.{long}.{long}\n");
    let zones = catalog(&[("example.", &text)]);
    let soa = "ns example. 60 SOA ns.example.net. h.example. 7 3600 600 86400 60";
    let dname = "an d.example. 300 DNAME web.example.";
    let alias = "an host.d.example. 300 CNAME host.web.example.";
    let table: &[(&str, &str, &[&str])] = &[
        ("host.d.example.", "TXT", &["NOERROR aa", dname, alias, "an host.web.example. 300 TXT \"t\""]),
        ("host.d.example.", "A", &["NOERROR aa", dname, alias, soa]),
        ("host.d.example.", "CNAME", &["NOERROR aa", dname, alias]),
        // The name itself is not redirected, a record below it is hidden.
        ("d.example.", "TXT", &["NOERROR aa", "an d.example. 300 TXT \"own\""]),
        ("d.example.", "DNAME", &["NOERROR aa", dname]),
        ("d.example.", "A", &["NOERROR aa", soa]),
        (
            "below.d.example.",
            "A",
            &["NXDOMAIN aa", dname, "an below.d.example. 300 CNAME below.web.example.", soa],
        ),
        (
            "x.y.away.example.",
            "A",
            &[
                "NOERROR aa",
                "an away.example. 300 DNAME example.org.",
                "an x.y.away.example. 300 CNAME x.y.example.org.",
            ],
        ),
        (
            "to.example.",
            "TXT",
            &[
                "NOERROR aa",
                "an to.example. 300 CNAME host.d.example.",
                dname,
                alias,
                "an host.web.example. 300 TXT \"t\"",
            ],
        ),
    ];
    for (question, rtype, wanted) in table {
        assert_eq!(ask(&zones, question, rtype), *wanted, "{question} {rtype}");
    }
    // Back to where it began: each record once.
    assert_eq!(ask(&zones, "x.one.example.", "A").len(), 5);
    // RFC 6672, section 2.2: no name has more than 255 octets.
    let question = format!("{}.c.long.example.", "b".repeat(62));
    let said = ask(&zones, &question, "A");
    assert_eq!((&*said[0], said.len()), ("YXDOMAIN aa", 2), "{said:?}");
    assert!(ask(&zones, "b.long.example.", "A")[0].starts_with("NXDOMAIN"));
}

#[test]
fn signed_zones_answer_with_signatures_and_proofs_to_those_who_ask() {
    let sign = |owner: &str, rtype: &str, labels: u8| {
        format!("{owner} 300 RRSIG {rtype} 13 {labels} 300 20460101000000 20200101000000 1 example. AAEC\n")
    };
    let mut text = "$TTL 300\n@ SOA ns.example.net. h 7 3600 600 86400 300\n NS ns.example.net.\n\
        @ DNSKEY 257 3 ECDSAP256SHA256 AAEC\n@ NSEC *.a NS SOA RRSIG NSEC DNSKEY\n\
        *.a A 192.0.2.1\n*.a NSEC b A RRSIG NSEC\n\
        b A 192.0.2.2\nb NSEC sub A RRSIG NSEC\n\
        sub NS ns.example.net.\nsub NSEC @ NS RRSIG NSEC\n"
        .to_owned();
    for (owner, types) in [("@", "SOA NS DNSKEY NSEC"), ("*.a", "A NSEC"), ("b", "A NSEC"), ("sub", "NSEC")] {
        let labels = if owner == "@" { 1 } else { 2 };
        types.split(' ').for_each(|rtype| text += &sign(owner, rtype, labels));
    }
    // Signatures of nothing: of a type that the name lacks, and at a name without records.
    text += &(sign("b", "TXT", 2) + &sign("c", "A", 2) + &sign("x.y.b", "A", 4));
    let zones = catalog(&[("example.", &text)]);
    // Section and owner of each record, and the type that it has or signs.
    let summary = |message: &[u8]| -> Vec<String> {
        let shown = show(&reply(&zones, message, Transport::Udp).unwrap());
        let word = |line: &str| {
            let words: Vec<_> = line.split(' ').collect();
            match words.get(3) {
                Some(&"RRSIG") => format!("{} {} sig {}", words[0], words[1], words[4]),
                Some(rtype) => format!("{} {} {rtype}", words[0], words[1]),
                None => line.to_owned(),
            }
        };
        without_servers(shown).iter().map(|line| word(line)).collect()
    };
    let table: &[(&str, &str, &[&str])] = &[
        ("b.example.", "A", &["NOERROR aa", "an b.example. A", "an b.example. sig A"]),
        (
            "b.example.",
            "TXT",
            &[
                "NOERROR aa",
                "ns example. SOA",
                "ns example. sig SOA",
                "ns b.example. NSEC",
                "ns b.example. sig NSEC",
            ],
        ),
        (
            "c.example.",
            "A",
            &[
                "NXDOMAIN aa",
                "ns example. SOA",
                "ns example. sig SOA",
                "ns b.example. NSEC",
                "ns b.example. sig NSEC",
                "ns example. NSEC",
                "ns example. sig NSEC",
            ],
        ),
        (
            "y.b.example.",
            "A",
            &[
                "NXDOMAIN aa",
                "ns example. SOA",
                "ns example. sig SOA",
                "ns b.example. NSEC",
                "ns b.example. sig NSEC",
            ],
        ),
        // From a wildcard: nothing is closer.
        (
            "x.a.example.",
            "A",
            &[
                "NOERROR aa",
                "an x.a.example. A",
                "an x.a.example. sig A",
                "ns *.a.example. NSEC",
                "ns *.a.example. sig NSEC",
            ],
        ),
        // An empty non-terminal.
        (
            "a.example.",
            "A",
            &[
                "NOERROR aa",
                "ns example. SOA",
                "ns example. sig SOA",
                "ns example. NSEC",
                "ns example. sig NSEC",
            ],
        ),
        // A delegation that is not signed.
        (
            "x.sub.example.",
            "A",
            &["NOERROR", "ns sub.example. NS", "ns sub.example. NSEC", "ns sub.example. sig NSEC"],
        ),
        ("b.example.", "RRSIG", &["NOERROR aa", "an b.example. sig A", "an b.example. sig NSEC"]),
        (
            "x.a.example.",
            "RRSIG",
            &[
                "NOERROR aa",
                "an x.a.example. sig A",
                "an x.a.example. sig NSEC",
                "ns *.a.example. NSEC",
                "ns *.a.example. sig NSEC",
            ],
        ),
    ];
    for (question, rtype, wanted) in table {
        let mut wanted: Vec<_> = wanted.iter().map(|line| (*line).to_owned()).collect();
        wanted.push("ar OPT 1232".to_owned());
        assert_eq!(summary(&secure_query(question, rtype)), wanted, "{question} {rtype}");
        // Without DO there is none of it, unless it is asked for.
        let plain = summary(&query(question, rtype));
        let extra = plain.iter().any(|line| line.contains("sig") || line.contains("NSEC"));
        assert_eq!(extra, *rtype == "RRSIG", "{question} {rtype}: {plain:?}");
    }
}

#[test]
fn ds_records_of_an_unsigned_zone_prove_nothing_and_a_positive_answer_with_them_is_short() {
    let text = "$TTL 60\n@ SOA ns h 1 2 3 4 5\n NS ns\nns A 192.0.2.1\nd NS ns.elsewhere.test.\n\
                d DS 1 8 1 000102030405060708090a0b0c0d0e0f10111213\n";
    let zones = catalog(&[("example.", text)]);
    let answer = |message: &[u8]| show(&reply(&zones, message, Transport::Udp).unwrap());
    let referral = ["NOERROR", "ns d.example. 60 NS ns.elsewhere.test.", "ar OPT 1232"];
    assert_eq!(answer(&secure_query("x.d.example.", "A")), referral);
    let ds = answer(&query("d.example.", "DS"));
    assert!(ds.len() == 2 && ds[1].starts_with("an d.example. 60 DS 1 "), "{ds:?}");
}

#[test]
fn queries_take_hashes_whose_answers_prove_what_is_not_there() {
    let parent = "$TTL 300\n@ SOA ns.example.net. h 7 3600 600 86400 300\n NS ns.example.net.\n\
        @ NSEC3PARAM 1 0 2 AABB\nsigned A 192.0.2.1\n\
        signed RRSIG A 13 2 300 20460101000000 20200101000000 1 example. AAEC\n\
        www CNAME signed\nb.inner A 192.0.2.1\nmoved DNAME example.net.\n*.wild A 192.0.2.1\n\
        sub NS ns.example.net.\nchild NS ns.example.net.\n";
    let child = "@ 60 SOA ns.example.net. h 1 2 3 4 5\n NS ns.example.net.\n";
    let zones = catalog(&[("example.", parent), ("child.example.", child)]);
    for (name, rtype, hashed) in [
        ("signed.example.", "A", false),
        ("signed.example.", "AAAA", true),
        ("signed.example.", "ANY", false),
        ("signed.example.", "RRSIG", false),
        ("www.example.", "A", false),
        ("www.example.", "RRSIG", true),
        ("inner.example.", "ANY", true),
        ("x.moved.example.", "A", true),
        ("x.wild.example.", "A", true),
        ("sub.example.", "A", true),
        ("none.example.", "A", true),
        // The parent proves that there is none.
        ("child.example.", "DS", true),
        ("child.example.", "AAAA", false),
    ] {
        assert_eq!(takes_hashes(&zones, &secure_query(name, rtype)), hashed, "{name} {rtype}");
        assert!(!takes_hashes(&zones, &query(name, rtype)), "{name} {rtype}: without DO");
    }
}

#[test]
fn signatures_made_from_a_wildcard_are_proved_by_hashes_as_its_records_are() {
    let names = [("example.", "NS SOA NSEC3PARAM"), ("a.example.", ""), ("*.a.example.", "A RRSIG")];
    let mut chain: Vec<_> = names.iter().map(|(name, types)| (hash(name), *types)).collect();
    chain.sort();
    let mut text = "$TTL 300\n@ SOA ns.example.net. h 7 3600 600 86400 300\n NS ns.example.net.\n\
        @ NSEC3PARAM 1 0 2 AABB\n*.a A 192.0.2.1\n"
        .to_owned();
    let mut sign = |owner: &str, rtype: &str| {
        text +=
            &format!("{owner} 300 RRSIG {rtype} 13 2 300 20460101000000 20200101000000 1 example. AAEC\n");
    };
    sign("*.a", "A");
    chain.iter().for_each(|(owner, _)| sign(owner, "NSEC3"));
    for (at, (owner, types)) in chain.iter().enumerate() {
        text += &format!("{owner} NSEC3 1 0 2 AABB {} {types}\n", chain[(at + 1) % chain.len()].0);
    }
    let zones = catalog(&[("example.", &text)]);
    let said = |rtype| show(&reply(&zones, &secure_query("x.a.example.", rtype), Transport::Udp).unwrap());
    let proof = |rtype| said(rtype).into_iter().filter(|line| line.contains("NSEC3 ")).collect::<Vec<_>>();
    assert!(
        said("RRSIG").iter().any(|line| line.starts_with("an x.a.example. 300 RRSIG A ")),
        "{:?}",
        said("RRSIG")
    );
    assert_eq!(
        proof("A").len(),
        2,
        "the record that covers x.a.example., and its signature: {:?}",
        said("A")
    );
    assert_eq!(proof("RRSIG"), proof("A"));
}

#[test]
fn a_chain_whose_parameters_have_flags_is_not_used() {
    // Of another salt, and of the one that counts: the hash of example with each is made up.
    let hash = |digit: &str| digit.repeat(32);
    let chain = |salt: &str, digit: &str| {
        format!("{} NSEC3 1 0 0 {salt} {} NS SOA NSEC3PARAM\n", hash(digit), hash(digit))
    };
    for (flags, wanted) in [("0", "1"), ("1", "2")] {
        let text = format!(
            "$TTL 300\n@ SOA ns.example.net. h 7 3600 600 86400 300\n NS ns.example.net.\n\
             @ NSEC3PARAM 1 {flags} 0 AA\n@ NSEC3PARAM 1 0 0 BB\n{}{}",
            chain("AA", "1"),
            chain("BB", "2")
        );
        let zones = catalog(&[("example.", &text)]);
        let said = show(&reply(&zones, &secure_query("b.example.", "A"), Transport::Udp).unwrap());
        let owners: Vec<_> = said.iter().filter(|line| line.contains(" NSEC3 ")).collect();
        let first = format!("ns {}.example. ", hash(wanted));
        assert!(owners.len() == 1 && owners[0].starts_with(&first), "flags {flags}: {said:?}");
    }
}

#[test]
fn a_query_with_a_key_is_refused_since_there_are_none() {
    let zones = zones();
    // RFC 8945, section 4.2: key.example., class ANY, HMAC-SHA256, time 1, fudge 300, a MAC of 4
    // octets, identifier, no error, no other data.
    let tsig = [
        &b"\x03key\x07example\0"[..],
        &[0, 250, 0, 255, 0, 0, 0, 0, 0, 33],
        b"\x0bhmac-sha256\0",
        &[0, 0, 0, 0, 0, 1, 1, 44, 0, 4, 1, 2, 3, 4, 0x12, 0x34, 0, 0, 0, 0],
    ]
    .concat();
    let mut message = [query("web.example.org.", "A"), tsig.clone()].concat();
    message[11] = 1;
    let answer = reply(&zones, &message, Transport::Udp).unwrap();
    assert_eq!(answer[3] & 15, 9, "NOTAUTH");
    // The same record with BADKEY, without a MAC.
    let wanted = [&tsig[..tsig.len() - 14], &[1, 44, 0, 0, 0x12, 0x34, 0, 17, 0, 0]].concat();
    let mut wanted = wanted;
    let len = tsig.len() - 33;
    wanted[len - 1] = 29;
    assert!(answer.ends_with(&wanted), "{answer:x?}\n{wanted:x?}");
    assert!(answer.len() <= message.len());
    // No answer over UDP is longer than the client allows, whatever the names.
    let long = [[&[63][..], &[b'x'; 63]].concat().repeat(3), vec![0]].concat();
    let mut huge = [query(&format!("{0}.{0}.{0}.", "y".repeat(63)), "A"), long.clone()].concat();
    huge.extend(&tsig[13..21]);
    huge.extend([0, (long.len() + 20) as u8]);
    huge.extend(&long);
    huge.extend(&tsig[tsig.len() - 20..]);
    huge[11] = 1;
    let answer = reply(&zones, &huge, Transport::Udp).unwrap();
    assert!(answer[3] & 15 == 9 && answer.len() <= 512, "{} octets, {}", answer.len(), answer[3] & 15);
    // Behind an OPT record it is the last; in front of it, it is not.
    let opt = edns_query("web.example.org.", "A", 1232);
    let mut behind = [opt.clone(), tsig.clone()].concat();
    behind[11] = 2;
    assert_eq!(reply(&zones, &behind, Transport::Udp).unwrap()[3] & 15, 9);
    let at = opt.len() - 11;
    let mut before = [&opt[..at], &tsig, &opt[at..]].concat();
    before[11] = 2;
    assert_eq!(show(&reply(&zones, &before, Transport::Udp).unwrap())[0], "FORMERR");
}

/// Returns a zone with an answer of about `octets`, a referral with as much glue, and many mail
/// hosts.
fn large(records: usize) -> Catalog {
    let mut text = "$TTL 60\n@ SOA ns h 1 2 3 4 5\n NS ns\nns A 192.0.2.1\n".to_owned();
    for i in 0..records {
        text += &format!("big A 10.0.{}.{}\n", i / 256, i % 256);
        text += &format!("sub NS ns{i}.sub\nns{i}.sub A 10.1.{}.{}\n", i / 256, i % 256);
        text += &format!("mail MX 1 m{i}\nm{i} A 10.2.{}.{}\n", i / 256, i % 256);
    }
    catalog(&[("example.", &text)])
}

#[test]
fn what_is_too_long_for_a_datagram_is_empty_and_says_so() {
    let zones = large(100);
    for (question, rtype) in [("big.example.", "A"), ("x.sub.example.", "A")] {
        let truncated = reply(&zones, &query(question, rtype), Transport::Udp).unwrap();
        assert_eq!(show(&truncated).len(), 1, "{question}");
        assert!(show(&truncated)[0].contains(" tc"), "{question}");
        let question_kept = Message::from_slice(&truncated).unwrap().sole_question().is_ok();
        assert!(question_kept);
        let truncated = reply(&zones, &edns_query(question, rtype, 65535), Transport::Udp).unwrap();
        assert_eq!(show(&truncated)[1..], ["ar OPT 1232"]);
        let whole = reply(&zones, &edns_query(question, rtype, 512), Transport::Tcp).unwrap();
        assert!(show(&whole).len() > 100 && !show(&whole)[0].contains(" tc"), "{question}");
    }
}

#[test]
fn addresses_that_are_not_needed_are_left_out_as_whole_sets() {
    let zones = large(20);
    let message = edns_query("mail.example.", "MX", 512);
    let answer = reply(&zones, &message, Transport::Udp).unwrap();
    let lines = show(&answer);
    assert_eq!(lines[0], "NOERROR aa");
    assert!(answer.len() <= 512);
    let addresses = lines.iter().filter(|line| line.starts_with("ar m")).count();
    assert!((1..20).contains(&addresses), "{addresses} addresses");
}

#[test]
fn no_answer_is_longer_than_it_may_be_and_the_limit_is_used() {
    let mut longest = 0;
    for records in 1..90 {
        let zones = large(records);
        for payload in [0, 512, 700, 1231, 1232, 1400, 65535] {
            for (question, rtype) in [("big.example.", "A"), ("x.sub.example.", "A"), ("mail.example.", "MX")]
            {
                let answer = reply(&zones, &edns_query(question, rtype, payload), Transport::Udp).unwrap();
                assert!(answer.len() <= usize::from(payload.clamp(512, MAX_UDP)), "{question} {payload}");
                longest = longest.max(answer.len());
                // It parses, and the OPT record is there.
                assert_eq!(show(&answer).last().unwrap(), "ar OPT 1232");
            }
        }
    }
    assert!(longest > usize::from(MAX_UDP) - 16, "{longest}");
}

#[test]
fn the_largest_set_of_records_fits_into_a_message_over_tcp() {
    let mut text = "$TTL 60\n@ SOA ns.example.net. h 1 2 3 4 5\n NS ns.example.net.\n".to_owned();
    for i in 0..MAX_RRSET / 16 {
        text += &format!("big A 10.0.{}.{}\n", i / 256, i % 256);
    }
    let zones = catalog(&[("example.", &text)]);
    let answer = reply(&zones, &edns_query("big.example.", "A", 512), Transport::Tcp).unwrap();
    // With the code, the zone's server and the OPT record.
    assert_eq!(show(&answer).len(), MAX_RRSET / 16 + 3);
}
