//! The same operations over all three protocols and in a map have the same outcome.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::{Connection, Step, UdpServer};
use crate::fuzzing::{answers, converse, peers, service};
use crate::service::Service;
use crate::store::Now;

const NOW: Now = Now { seconds: 100, start_unix: 1_700_000_000 };

#[derive(Debug, Clone)]
enum Operation {
    Store { mode: usize, key: u8, value: Vec<u8> },
    Get { key: u8 },
    Delete { key: u8 },
    Count { up: bool, key: u8, delta: u64 },
    Touch { key: u8, over: bool },
    Flush,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Done,
    Not,
    Value(Vec<u8>),
    Number(u64),
    NotNumeric,
}

const MODES: [&str; 5] = ["set", "add", "replace", "append", "prepend"];

fn operation() -> impl Strategy<Value = Operation> {
    let value = prop_oneof![
        any::<u32>().prop_map(|number| number.to_string().into_bytes()),
        proptest::collection::vec(any::<u8>(), 0..50),
        (0usize..12_000).prop_map(|len| vec![b'\n'; len]),
    ];
    prop_oneof![
        4 => (0usize..5, 0u8..5, value).prop_map(|(mode, key, value)| Operation::Store { mode, key, value }),
        4 => (0u8..5).prop_map(|key| Operation::Get { key }),
        1 => (0u8..5).prop_map(|key| Operation::Delete { key }),
        2 => (any::<bool>(), 0u8..5, any::<u64>()).prop_map(|(up, key, delta)| Operation::Count { up, key, delta }),
        1 => (0u8..5, any::<bool>()).prop_map(|(key, over)| Operation::Touch { key, over }),
        1 => Just(Operation::Flush),
    ]
}

/// Performs an operation on a map; returns the outcome.
fn in_a_map(map: &mut HashMap<u8, Vec<u8>>, operation: &Operation) -> Outcome {
    match operation {
        Operation::Store { mode, key, value } => {
            let value = match (MODES[*mode], map.get(key)) {
                ("add", Some(_)) | ("replace" | "append" | "prepend", None) => return Outcome::Not,
                ("append", Some(old)) => [&old[..], value].concat(),
                ("prepend", Some(old)) => [value, &old[..]].concat(),
                _ => value.clone(),
            };
            // Larger than the store allows: nothing changes.
            if value.len() > (32 << 10) - 50 - "k0".len() {
                return Outcome::Not;
            }
            map.insert(*key, value);
            Outcome::Done
        }
        Operation::Get { key } => map.get(key).cloned().map_or(Outcome::Not, Outcome::Value),
        Operation::Delete { key } => map.remove(key).map_or(Outcome::Not, |_| Outcome::Done),
        Operation::Count { up, key, delta } => {
            let Some(value) = map.get_mut(key) else { return Outcome::Not };
            // Only the beginning is looked at.
            let rest = value[..value.len().min(64)].trim_ascii_start();
            let digits = rest.split(u8::is_ascii_whitespace).next();
            let digits = digits.filter(|digits| digits.len() < rest.len() || value.len() <= 64);
            let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
            let number = digits.and_then(|digits| digits.parse::<u64>().ok());
            let Some(number) = number else { return Outcome::NotNumeric };
            let number = if *up { number.wrapping_add(*delta) } else { number.saturating_sub(*delta) };
            *value = format!("{number:<width$}", width = value.len()).into_bytes();
            Outcome::Number(number)
        }
        Operation::Touch { key, over } => {
            let there = map.contains_key(key);
            if *over {
                map.remove(key);
            }
            if there { Outcome::Done } else { Outcome::Not }
        }
        Operation::Flush => {
            map.clear();
            Outcome::Done
        }
    }
}

fn as_text(operation: &Operation) -> Vec<u8> {
    let line = |line: String| [line.as_bytes(), b"\r\n"].concat();
    match operation {
        Operation::Store { mode, key, value } => {
            let head = line(format!("{} k{key} 7 0 {}", MODES[*mode], value.len()));
            [&head, &value[..], b"\r\n"].concat()
        }
        Operation::Get { key } => line(format!("get k{key}")),
        Operation::Delete { key } => line(format!("delete k{key}")),
        Operation::Count { up, key, delta } => {
            line(format!("{} k{key} {delta}", if *up { "incr" } else { "decr" }))
        }
        Operation::Touch { key, over } => line(format!("touch k{key} {}", if *over { -1 } else { 100 })),
        Operation::Flush => line("flush_all".to_owned()),
    }
}

fn from_text(answer: &[u8]) -> Outcome {
    let line_end = answer.windows(2).position(|end| end == b"\r\n").expect("a line");
    match std::str::from_utf8(&answer[..line_end]).expect("text") {
        "STORED" | "DELETED" | "TOUCHED" | "OK" => Outcome::Done,
        "NOT_STORED" | "NOT_FOUND" | "END" => Outcome::Not,
        line if line.starts_with("VALUE ") => {
            assert!(answer.ends_with(b"\r\nEND\r\n") && line.split(' ').nth(2) == Some("7"));
            Outcome::Value(answer[line_end + 2..answer.len() - 7].to_vec())
        }
        line if line.starts_with("CLIENT_ERROR cannot") => Outcome::NotNumeric,
        line => Outcome::Number(line.parse().expect("a number")),
    }
}

fn as_meta(operation: &Operation) -> Vec<u8> {
    let line = |line: String| [line.as_bytes(), b"\r\n"].concat();
    match operation {
        Operation::Store { mode, key, value } => {
            let head = line(format!("ms k{key} {} F7 M{}", value.len(), ["S", "E", "R", "A", "P"][*mode]));
            [&head, &value[..], b"\r\n"].concat()
        }
        Operation::Get { key } => line(format!("mg k{key} v f")),
        Operation::Delete { key } => line(format!("md k{key}")),
        Operation::Count { up, key, delta } => {
            line(format!("ma k{key} v M{} D{delta}", if *up { "I" } else { "D" }))
        }
        Operation::Touch { key, over } => line(format!("mg k{key} T{}", if *over { -1 } else { 100 })),
        Operation::Flush => line("flush_all".to_owned()),
    }
}

fn from_meta(operation: &Operation, answer: &[u8]) -> Outcome {
    let line_end = answer.windows(2).position(|end| end == b"\r\n").expect("a line");
    match std::str::from_utf8(&answer[..line_end]).expect("text") {
        "HD" | "OK" => Outcome::Done,
        "NS" | "NF" | "EN" => Outcome::Not,
        line if line.starts_with("VA ") => {
            let value = &answer[line_end + 2..answer.len() - 2];
            match operation {
                Operation::Count { .. } => {
                    Outcome::Number(std::str::from_utf8(value).expect("text").parse().expect("a number"))
                }
                _ => {
                    assert!(line.ends_with(" f7"), "{line}");
                    Outcome::Value(value.to_vec())
                }
            }
        }
        line => {
            assert!(line.starts_with("CLIENT_ERROR cannot"), "{line}");
            Outcome::NotNumeric
        }
    }
}

/// A Unix time before the beginning of every store, and not relative.
const LONG_AGO: u32 = 60 * 60 * 24 * 30 + 1;

fn packet(opcode: u8, extras: &[u8], key: &str, value: &[u8]) -> Vec<u8> {
    let body = (extras.len() + key.len() + value.len()) as u32;
    let mut bytes = vec![0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0];
    bytes.extend(body.to_be_bytes());
    bytes.extend([0; 12]);
    [&bytes, extras, key.as_bytes(), value].concat()
}

fn as_packet(operation: &Operation) -> Vec<u8> {
    match operation {
        Operation::Store { mode, key, value } => {
            let extras: &[u8] = if *mode < 3 { &[0, 0, 0, 7, 0, 0, 0, 0] } else { &[] };
            packet([1, 2, 3, 14, 15][*mode], extras, &format!("k{key}"), value)
        }
        Operation::Get { key } => packet(0, &[], &format!("k{key}"), b""),
        Operation::Delete { key } => packet(4, &[], &format!("k{key}"), b""),
        Operation::Count { up, key, delta } => {
            let extras = [&delta.to_be_bytes()[..], &[0; 8], &[0xff; 4]].concat();
            packet(if *up { 5 } else { 6 }, &extras, &format!("k{key}"), b"")
        }
        Operation::Touch { key, over } => {
            // Without a sign: more than 30 days is a date, and this one is over.
            let expiry = if *over { LONG_AGO } else { 100 };
            packet(0x1c, &expiry.to_be_bytes(), &format!("k{key}"), b"")
        }
        Operation::Flush => packet(8, &[], "", b""),
    }
}

fn from_packet(operation: &Operation, answer: &[u8]) -> Outcome {
    assert_eq!(answer[0], 0x81);
    let body = &answer[24..];
    match (u16::from_be_bytes([answer[6], answer[7]]), operation) {
        (0, Operation::Get { .. }) => {
            assert_eq!(body[..4], [0, 0, 0, 7]);
            Outcome::Value(body[4..].to_vec())
        }
        (0, Operation::Count { .. }) => {
            Outcome::Number(u64::from_be_bytes(body.try_into().expect("eight bytes")))
        }
        (0, _) => Outcome::Done,
        (1 | 2 | 5, _) => Outcome::Not,
        (6, _) => Outcome::NotNumeric,
        (status, _) => panic!("status {status} for {operation:?}"),
    }
}

/// Performs `operations` over each protocol, in pieces of `piece` bytes, and in a map, and checks
/// that the outcomes are equal.
fn agree(operations: &[Operation], piece: usize) {
    let services = [service(), service(), service()];
    let mut map = HashMap::new();
    for operation in operations {
        let wanted = in_a_map(&mut map, operation);
        let text = answers(&services[0], &as_text(operation), piece);
        let meta = answers(&services[1], &as_meta(operation), piece);
        let packet = answers(&services[2], &as_packet(operation), piece);
        assert_eq!(from_text(&text), wanted, "text, {operation:?}");
        assert_eq!(from_meta(operation, &meta), wanted, "meta, {operation:?}");
        assert_eq!(from_packet(operation, &packet), wanted, "binary, {operation:?}");
    }
    services.iter().for_each(|service| service.store.check());
}

#[test]
fn a_number_after_line_feeds_is_counted_in_every_protocol() {
    let store = |mode, value: &[u8]| Operation::Store { mode, key: 0, value: value.to_vec() };
    agree(
        &[store(0, &[b'\n'; 11]), store(3, b"1000000000"), Operation::Count { up: false, key: 0, delta: 0 }],
        1,
    );
}

proptest! {
    #[test]
    fn all_protocols_do_the_same(
        operations in proptest::collection::vec(operation(), 1..60),
        piece in 1usize..5000,
    ) {
        agree(&operations, piece);
    }

    /// Arbitrary sequences of the protocols' words break nothing.
    #[test]
    fn nonsense_breaks_nothing(words in proptest::collection::vec(word(), 1..80), piece in any::<u8>()) {
        let bytes: Vec<u8> = [&[piece][..], &words.concat()].concat();
        crate::fuzzing::stream(&bytes);
        crate::fuzzing::datagram(&[&[1, 2, 0, 0, 0, 1, 0, 0], &bytes[1..]].concat());
    }
}

/// Generates pieces of commands.
fn word() -> impl Strategy<Value = Vec<u8>> {
    let words = [
        "get ",
        "gets ",
        "gat 5 ",
        "set ",
        "append ",
        "cas ",
        "delete ",
        "incr ",
        "touch ",
        "mg ",
        "ms ",
        "md ",
        "ma ",
        "me ",
        "mn",
        "flush_all",
        "stats ",
        "items",
        "a",
        "b",
        " ",
        "  ",
        "\r\n",
        "\r\n",
        "\r\n",
        "\n",
        " 0",
        " 1",
        " 5",
        " 40",
        " 20000",
        " -1",
        " noreply",
        " v",
        " k",
        " q",
        " b",
        " N5",
        " T0",
        " R9",
        " MA",
        " MS",
        " I",
        " C1",
        " O1",
        "YQ==",
        "\u{80}",
    ];
    prop_oneof![
        10 => (0..words.len()).prop_map(move |index| words[index].as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..30),
        1 => (0usize..30_000).prop_map(|len| vec![b'x'; len]),
        1 => (any::<u8>(), 0u8..30, 0u8..30).prop_map(|(opcode, key, extras)| {
            let mut header = vec![0x80, opcode % 0x26, 0, key, extras, 0, 0, 0, 0, 0, 0, key + extras];
            header.resize(24 + usize::from(key + extras), 0);
            header
        }),
    ]
}

fn talk(service: &Arc<Service>, bytes: &str) -> String {
    String::from_utf8(answers(service, bytes.as_bytes(), usize::MAX)).expect("text")
}

#[test]
fn a_pipeline_is_answered_in_one_output() {
    let service = service();
    let mut connection = Connection::new(Arc::clone(&service));
    let commands = b"set a 0 0 1\r\nx\r\nget a\r\nget b\r\nmn\r\n";
    connection.space()[..commands.len()].copy_from_slice(commands);
    connection.received(commands.len());
    assert_eq!(connection.process(NOW), Step::Read);
    assert_eq!(connection.output(), b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\nEND\r\nMN\r\n");
}

#[test]
fn turns_have_large_retrievals_alone_or_none() {
    let service = service();
    talk(&service, "set a 0 0 1\r\nx\r\n");
    let mut connection = Connection::new(Arc::clone(&service));
    connection.divide_turns(3);
    let large = format!("get{}\r\n", " a".repeat(3_000));
    let bytes = format!("get a\r\nget a a\r\n{large}get a b c\r\nmn\r\n");
    let (mut turns, mut answer, mut rest) = (Vec::new(), Vec::new(), bytes.as_bytes());
    while !rest.is_empty() {
        let space = connection.space();
        let len = rest.len().min(space.len());
        space[..len].copy_from_slice(&rest[..len]);
        rest = &rest[len..];
        connection.received(len);
        loop {
            let is_large = connection.begin_turn();
            let step = connection.process(NOW);
            let output = connection.output();
            // What is of one size follows in turns of one size.
            if turns.last() != Some(&is_large) && !output.is_empty() {
                turns.push(is_large);
            }
            answer.extend_from_slice(output);
            connection.sent();
            match step {
                Step::Continue => {}
                Step::Read => break,
                Step::Close => panic!("it goes on"),
            }
        }
    }
    assert_eq!(turns, [false, true, false]);
    let item = "VALUE a 0 1\r\nx\r\n";
    let wanted = [1, 2, 3_000, 1].map(|count| format!("{}END\r\n", item.repeat(count))).concat();
    assert!(answer == (wanted + "MN\r\n").as_bytes());
}

#[test]
fn a_client_that_leaves_in_the_middle_leaves_nothing_behind() {
    let service = service();
    let large = "x".repeat(20_000);
    talk(&service, &format!("set a 0 0 20000\r\n{large}\r\n"));
    for unfinished in ["set b 0 0 20000\r\nxyz", "get a a a a a a\r\n"] {
        let mut connection = Connection::new(Arc::clone(&service));
        connection.space()[..unfinished.len()].copy_from_slice(unfinished.as_bytes());
        connection.received(unfinished.len());
        connection.process(NOW);
        assert!(service.store.totals(NOW).pinned_cells > 0, "{unfinished}");
        drop(connection);
        assert_eq!(service.store.totals(NOW).pinned_cells, 0);
    }
    service.store.check();
}

#[test]
fn statistics_add_up() {
    let service = service();
    talk(&service, "set a 0 0 1\r\nx\r\nget a b\r\nincr a 1\r\nflush_all\r\nget a\r\nms c 1\r\ny\r\n");
    let stats = talk(&service, "stats\r\n");
    for line in [
        "cmd_get 3",
        "get_hits 1",
        "get_misses 2",
        "get_flushed 1",
        "cmd_set 2",
        "curr_items 1",
        "cmd_flush 1",
        "cmd_meta 1",
    ] {
        assert!(stats.contains(&format!("STAT {line}\r\n")), "{line} in {stats}");
    }
    assert!(talk(&service, "stats items\r\n").starts_with("STAT items:1:number 1\r\n"));
    assert!(talk(&service, "stats slabs\r\n").contains("STAT 1:chunk_size 64\r\n"));
    assert_eq!(talk(&service, "stats sizes\r\n"), "STAT 64 1\r\nEND\r\n");
    assert_eq!(talk(&service, "stats reset\r\n"), "RESET\r\n");
    assert!(talk(&service, "stats\r\n").contains("STAT cmd_get 0\r\n"));
}

#[test]
fn appending_to_nothing_may_make_an_item() {
    let service = service();
    let answer = talk(
        &service,
        "ms a 1 MA N0\r\nx\r\nms a 1 MA N0\r\ny\r\nmg a v t\r\nms b 1 E77 c\r\nx\r\nmg b c\r\n",
    );
    assert_eq!(answer, "HD\r\nHD\r\nVA 2 t-1\r\nxy\r\nHD c77\r\nHD c77\r\n");
}

/// Returns a line of `line` bytes that stores a block of `block` bytes, each with its end.
fn padded_set(line: usize, block: usize) -> Vec<u8> {
    let words = format!("k 0 0 {block}");
    let spaces = " ".repeat(line - "set".len() - words.len());
    [format!("set{spaces}{words}\r\n").as_bytes(), &vec![b'x'; block], b"\r\n"].concat()
}

#[test]
fn a_line_and_its_block_that_fill_the_input_to_the_byte_and_beyond_are_stored() {
    for line in (8192 - 4)..(8192 + 4) {
        for block in (8190 - 4)..(8190 + 4) {
            let (service, wanted) = (service(), "x".repeat(block));
            let mut connection = Connection::new(Arc::clone(&service));
            // The buffer grows first, so that the whole line arrives at once.
            assert_eq!(converse(&mut connection, &padded_set(50, 8190), usize::MAX), b"STORED\r\n");
            let answer = converse(&mut connection, &padded_set(line, block), usize::MAX);
            assert_eq!(answer, b"STORED\r\n", "line of {line}, block of {block}");
            let answer = converse(&mut connection, b"get k\r\n", usize::MAX);
            assert!(answer == format!("VALUE k 0 {block}\r\n{wanted}\r\nEND\r\n").as_bytes());
        }
    }
}

#[test]
fn a_datagram_whose_line_and_block_exceed_the_input_is_answered() {
    let service = service();
    let mut server = UdpServer::new(&service);
    for commands in [padded_set(16, 8190), padded_set(8191, 8190)] {
        let mut answer = Vec::new();
        let request = [&[0, 7, 0, 0, 0, 1, 0, 0], &commands[..]].concat();
        server.handle(&request, NOW, |datagram| answer.extend_from_slice(&datagram[8..]));
        assert_eq!(answer, b"STORED\r\n");
    }
}

#[test]
fn a_datagram_that_promises_more_than_it_brings_keeps_nothing_of_the_store() {
    let service = service();
    let mut server = UdpServer::new(&service);
    let request = [&[0, 7, 0, 0, 0, 1, 0, 0], &b"set k 0 0 20000\r\nthe beginning"[..]].concat();
    server.handle(&request, NOW, |_| panic!("nothing is to be said"));
    assert_eq!(service.store.totals(NOW).pinned_cells, 0);
    service.store.check();
}

#[test]
fn flag_e_names_the_version_whatever_makes_one() {
    let service = service();
    let answer = talk(
        &service,
        "mg made N30 E500 c\r\nms a 1 c E70\r\n1\r\nma a E900 c v\r\nma b N0 E77 c\r\nmd a I E1000\r\nmg a c\r\nma a c\r\n",
    );
    let (told, last) = answer.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(told.replace('\r', ""), "HD c500 W\nHD c70\nVA 1 c900\n2\nHD c77\nHD\nHD c1000 X W");
    // Without the flag, versions are counted as usual.
    let version: u64 = last.strip_prefix("HD c").unwrap().parse().unwrap();
    assert!((1..70).contains(&version), "{answer}");
}

#[test]
fn a_request_of_http_ends_the_connection() {
    for request in ["GET / HTTP/1.1\r\nversion\r\n", "POST /a b HTTP/1.0\r\nversion\r\n"] {
        assert_eq!(talk(&service(), request), "", "{request}");
    }
    assert_eq!(talk(&service(), "GET /\r\nfoo http/1.1\r\n"), "ERROR\r\nERROR\r\n");
}

#[test]
fn expirations_of_the_binary_protocol_have_no_sign() {
    let service = service();
    let status = |request: &[u8]| answers(&service, request, usize::MAX)[7];
    for when in [0x7fff_ffff_u32, 0x8000_0000, 2_524_608_000, u32::MAX - 1, u32::MAX] {
        let (seven, when) = (7u32.to_be_bytes(), when.to_be_bytes());
        assert_eq!(status(&packet(1, &[seven, when].concat(), "a", b"v")), 0);
        assert_eq!(status(&packet(0, &[], "a", b"")), 0, "set until {when:?}");
        assert_eq!(status(&packet(0x1c, &when, "a", b"")), 0);
        assert_eq!(status(&packet(0, &[], "a", b"")), 0, "touched until {when:?}");
        assert_eq!(status(&packet(0x1d, &when, "a", b"")), 0, "retrieved and touched");
        assert_eq!(status(&packet(0, &[], "a", b"")), 0);
    }
    // A counter that is made by counting; all ones mean that none is made.
    let count = |when: u32| packet(5, &[&[0; 16][..], &when.to_be_bytes()].concat(), "n", b"");
    assert_eq!(status(&count(u32::MAX)), 1);
    assert_eq!((status(&count(u32::MAX - 1)), status(&packet(0, &[], "n", b""))), (0, 0));
    // A flush on a day to come removes nothing today.
    assert_eq!(status(&packet(8, &0x8000_0000_u32.to_be_bytes(), "", b"")), 0);
    assert_eq!(status(&packet(0, &[], "a", b"")), 0);
}

#[test]
fn commands_that_do_not_exist_here_say_so() {
    let service = service();
    for (line, answer) in [
        ("watch", "CLIENT_ERROR watch is not implemented: there is no log of requests; "),
        ("watch fetchers", "CLIENT_ERROR watch is not implemented: "),
        ("slabs reassign 1 2", "CLIENT_ERROR slabs and lru are not implemented: "),
        ("lru mode flat", "CLIENT_ERROR slabs and lru are not implemented: "),
        ("stats detail on", "CLIENT_ERROR stats detail is not implemented: "),
        ("stats detail dump", "CLIENT_ERROR stats detail is not implemented: "),
        ("stats detail off", "OK"),
        ("stats detail", "CLIENT_ERROR usage: stats detail on|off|dump"),
    ] {
        let said = talk(&service, &format!("{line}\r\n"));
        assert!(said.starts_with(answer) && said.ends_with("\r\n"), "{line}: {said}");
        assert_eq!(said.matches("\r\n").count(), 1, "{line}: {said}");
    }
}

#[test]
fn settings_of_the_crawler_are_checked_though_they_have_no_effect() {
    let service = service();
    for (words, answer) in [
        ("sleep 100", "OK"),
        ("sleep 1000001", "CLIENT_ERROR sleep must be one second or less"),
        ("sleep x", "CLIENT_ERROR bad command line format"),
        ("tocrawl 1000001", "OK"),
        ("tocrawl x", "CLIENT_ERROR bad command line format"),
        ("metadump x", "BADCLASS invalid class id"),
        ("mgdump all", "ERROR"),
    ] {
        assert_eq!(talk(&service, &format!("lru_crawler {words}\r\n")), format!("{answer}\r\n"), "{words}");
    }
    // Scripts wait for it.
    assert_eq!(talk(&service, "lru_crawler crawl all\r\n"), "OK\r\n");
    assert!(talk(&service, "stats\r\n").contains("STAT lru_crawler_running 0\r\n"));
}

#[test]
fn items_are_listed_whole_and_up_to_a_number() {
    let service = service();
    for i in 0..200 {
        talk(&service, &format!("set key{i}% {i} 0 {i}\r\n{}\r\n", "x".repeat(i)));
    }
    talk(&service, "get key7%\r\ndelete key9%\r\ntouch key8% -1\r\n");
    let listed = talk(&service, "lru_crawler metadump all\r\n");
    let mut lines: Vec<_> = listed.lines().collect();
    assert_eq!((lines.len(), lines.pop()), (199, Some("END")), "{listed}");
    let line = |key: &str| lines.iter().find(|line| line.starts_with(&format!("key={key} "))).copied();
    let seven = line("key7%25").expect("it is there");
    assert!(seven.contains(" exp=-1 la=") && seven.contains(" fetch=yes cls=1 size="), "{seven}");
    assert!(line("key11%25").expect("it is there").contains(" fetch=no "), "{listed}");
    assert_eq!((line("key8%25"), line("key9%25")), (None, None), "dead or deleted");
    let lines = |request| talk(&service, request).lines().map(str::to_owned).collect::<Vec<_>>();
    let all = lines("stats cachedump 1 0\r\n");
    assert_eq!(all.len(), 199);
    assert!(all.contains(&"ITEM key7% [7 b; 0 s]".to_owned()), "{all:?}");
    assert_eq!(lines("stats cachedump 1 5\r\n").len(), 6);
    assert_eq!(lines("stats cachedump 2 5\r\n"), ["END"]);
    // Other commands of the same input follow the list.
    assert!(talk(&service, "stats cachedump 1 1\r\nversion\r\n").contains("END\r\nVERSION"));
}

#[test]
fn a_list_is_sent_in_parts_over_tcp_and_whole_over_udp() {
    let service = service();
    for i in 0..400 {
        talk(&service, &format!("set key{i} 0 0 1\r\nx\r\n"));
    }
    let request = b"lru_crawler metadump all\r\n";
    let listed = answers(&service, request, usize::MAX);
    assert_eq!(listed.iter().filter(|&&c| c == b'\n').count(), 401);
    let mut connection = Connection::new(Arc::clone(&service));
    connection.space()[..request.len()].copy_from_slice(request);
    connection.received(request.len());
    assert_eq!(connection.process(NOW), Step::Continue);
    let first = connection.output();
    assert!(!first.is_empty() && first.len() < listed.len() && listed.starts_with(first));
    let mut answer = Vec::new();
    let request = [&[0, 7, 0, 0, 0, 1, 0, 0], &request[..]].concat();
    UdpServer::new(&service).handle(&request, NOW, |datagram| answer.extend_from_slice(&datagram[8..]));
    assert!(answer == listed);
}

#[test]
fn limits_of_memory_are_checked() {
    for (request, said) in [
        ("cache_memlimit 1\r\n", "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n"),
        ("cache_memlimit 8\r\n", "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n"),
        ("cache_memlimit x\r\n", "ERROR\r\n"),
        ("cache_memlimit 8 noreply\r\n", ""),
    ] {
        assert_eq!(talk(&service(), request), said, "{request}");
    }
}

#[test]
fn sizes_are_told_in_few_lines() {
    let service = service();
    talk(
        &service,
        &format!("set a 0 0 20000\r\n{}\r\nset b 0 0 20\r\n{}\r\n", "x".repeat(20_000), "y".repeat(20)),
    );
    // 335 cells, the next multiple of 16 above 256.
    assert_eq!(talk(&service, "stats sizes\r\n"), format!("STAT 128 1\r\nSTAT {} 1\r\nEND\r\n", 336 * 64));
}

#[test]
fn output_is_bounded_whatever_is_asked_for_and_a_long_one_keeps_no_memory() {
    let service = service();
    let _peers = peers(&service);
    talk(&service, &format!("set a 0 0 16000\r\n{}\r\n", "x".repeat(16_000)));
    // `converse` checks the bounds.
    for conns in ["stats conns\r\n".to_owned(), "get a a\r\nstats conns\r\n".repeat(20)] {
        let answer = talk(&service, &conns);
        assert!(answer.ends_with("secs_since_last_cmd 0\r\nEND\r\n"));
    }
}

#[test]
fn all_connections_are_listed_in_pieces() {
    let service = service();
    let peers = peers(&service);
    let answer = talk(&service, "stats conns\r\nget nothing\r\n");
    assert_eq!(answer.matches(":addr tcp:").count(), peers.len());
    assert_eq!(answer.matches("secs_since_last_cmd").count(), peers.len());
    assert!(answer.ends_with("END\r\nEND\r\n"), "one end, and that of the next command");
}

#[test]
fn an_answer_too_long_for_datagrams_is_an_error() {
    let service = service();
    let value = "x".repeat(30_000);
    talk(&service, &format!("set a 0 0 30000\r\n{value}\r\n"));
    let mut answer = Vec::new();
    let request = [&[0, 7, 0, 0, 0, 1, 0, 0], &b"get a a a a a\r\n"[..]].concat();
    UdpServer::new(&service).handle(&request, NOW, |datagram| answer.push(datagram[8..].to_vec()));
    assert_eq!(answer, [b"SERVER_ERROR out of memory writing get response\r\n"]);
}
