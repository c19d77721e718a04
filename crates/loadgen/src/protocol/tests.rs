//! Each protocol against answers as a server would make them, whole, cut and changed.

use super::testing::{NAMES, answer, dns_answer, protocols};
use super::*;
use proptest::prelude::*;
use tailwater_workload::keyvalue::Workload;
use tailwater_workload::random::stream;
use tailwater_workload::rocks::{Header, Operation, Status};

fn requests(protocol: &dyn Protocol, seed: u64, count: u64) -> Vec<Request> {
    let mut prng = stream(seed, 0);
    // The ids of one run: all end differently.
    (0..count).map(|n| Request { id: 7 << 40 | n, ticket: protocol.draw(&mut prng), due_ns: 5 * n }).collect()
}

/// Requests with the right answers to them.
fn exchange(protocol: &dyn Protocol, medium: Medium, seed: u64, count: u64) -> Vec<(Request, Vec<u8>)> {
    let make = |request: Request| {
        let mut bytes = Vec::new();
        protocol.encode(&request, medium, &mut bytes);
        (request, answer(protocol.name(), medium, &bytes))
    };
    requests(protocol, seed, count).into_iter().map(make).collect()
}

#[test]
fn right_answers_are_right_and_name_their_requests() {
    for medium in [Medium::Datagram, Medium::Stream] {
        for protocol in protocols(medium) {
            for (request, answer) in exchange(&*protocol, medium, 3, 40) {
                let id = protocol.id(&answer, medium);
                match protocol.ids(medium) {
                    Ids::Order => {}
                    Ids::Short => assert_eq!(id, Some(request.id & 0xffff), "{}", protocol.name()),
                    Ids::Long => assert_eq!(id, Some(request.id), "{}", protocol.name()),
                }
                let verdict = protocol.check(&request, &answer, medium);
                assert_eq!(verdict, Verdict::Right, "{protocol:?} {request:?}");
            }
        }
    }
}

#[test]
fn an_answer_to_another_request_is_not_right() {
    for medium in [Medium::Datagram, Medium::Stream] {
        for protocol in protocols(medium) {
            let exchange = exchange(&*protocol, medium, 4, 30);
            for (request, answer) in &exchange {
                // The first body of a page is the one that is expected.
                assert_eq!(protocol.check(request, answer, medium), Verdict::Right);
            }
            for (request, _) in &exchange {
                for (other, answer) in &exchange {
                    let same = request.ticket == other.ticket && protocol.ids(medium) == Ids::Order;
                    // Only one answer to `set` says nothing of its key.
                    let stored = answer == b"STORED\r\n" && request.ticket & 1 == 1;
                    if request.id != other.id && !(same && protocol.name() != "echo") && !stored {
                        let verdict = protocol.check(request, answer, medium);
                        assert_ne!(verdict, Verdict::Right, "{} {request:?} {other:?}", protocol.name());
                    }
                }
            }
        }
    }
}

#[test]
fn what_servers_say_when_they_cannot_is_told_from_lies() {
    let request = |ticket| Request { id: 9, ticket, due_ns: 0 };
    let memcached = Memcached::new(Workload::Usr, 10, Medium::Stream).unwrap();
    let check = |ticket, text: &[u8]| memcached.check(&request(ticket), text, Medium::Stream);
    assert_eq!(check(0, b"END\r\n"), Verdict::Miss);
    assert_eq!(check(1, b"END\r\n"), Verdict::Wrong);
    assert_eq!(check(1, b"SERVER_ERROR out of memory storing object\r\n"), Verdict::Refused);
    assert_eq!(check(0, b"ERROR\r\n"), Verdict::Wrong);
    let http = Http::new("host", &["/"]).unwrap();
    let check = |text: &[u8]| http.check(&request(0), text, Medium::Stream);
    assert_eq!(check(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"), Verdict::Refused);
    assert_eq!(check(b"HTTP/1.1 404 Gone\r\nContent-Length: 0\r\n\r\n"), Verdict::Miss);
    assert_eq!(check(b"HTTP/1.1 301 Away\r\nContent-Length: 0\r\n\r\n"), Verdict::Wrong);
    assert_eq!(check(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"), Verdict::Right);
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2;x=y\r\nbc\r\n0\r\n\r\n";
    assert_eq!(http.split(chunked), Ok(Some(chunked.len())));
    assert_eq!(check(chunked), Verdict::Right, "the same body in chunks");
    assert_eq!(check(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabd"), Verdict::Wrong);
    let dns = Dns::from_list(NAMES).unwrap();
    let mut asked = Vec::new();
    dns.encode(&request(0), Medium::Datagram, &mut asked);
    let mut truncated = dns_answer(Medium::Datagram, &asked);
    truncated[2] |= 2;
    assert_eq!(dns.check(&request(0), &truncated, Medium::Datagram), Verdict::Refused);
    let mut failed = dns_answer(Medium::Datagram, &asked);
    failed[3] = 2;
    assert_eq!(dns.check(&request(0), &failed, Medium::Datagram), Verdict::Refused);
    let rocks = Rocks::new(10, 64).unwrap();
    let missing = Header { status: Some(Status::NotFound), ..Header::request(Operation::Get, 9, 0, 0) };
    assert_eq!(rocks.check(&request(0), &missing.encode(), Medium::Stream), Verdict::Miss);
}

#[test]
fn interim_answers_are_skipped_and_answers_without_a_body_end_with_their_head() {
    let http = Http::new("example.com:80", &["/"]).unwrap();
    let request = Request { id: 9, ticket: 0, due_ns: 0 };
    let mut asked = Vec::new();
    http.encode(&request, Medium::Stream, &mut asked);
    assert_eq!(asked, b"GET / HTTP/1.1\r\nHost: example.com:80\r\n\r\n");
    let hints = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".to_vec();
    let last = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
    let whole = [&hints[..], last].concat();
    for len in 0..whole.len() {
        assert_eq!(http.split(&whole[..len]), Ok(None), "{len} bytes");
    }
    assert_eq!(http.split(&[&whole[..], last].concat()), Ok(Some(whole.len())));
    assert_eq!(http.check(&request, &whole, Medium::Stream), Verdict::Right);
    assert_eq!(http.check(&request, last, Medium::Stream), Verdict::Right, "the same body");
    for head in [
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 99999999999\r\n\r\n",
        "HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
    ] {
        let followed = [head.as_bytes(), last].concat();
        assert_eq!(http.split(&followed), Ok(Some(head.len())), "{head}");
    }
    // No end of them.
    assert_eq!(http.split(&hints.repeat(300)), Err(Malformed));
}

#[test]
fn answers_of_http_may_have_uncommon_forms() {
    let http = Http::new("host", &["/"]).unwrap();
    http.expect_body(0, b"ok");
    let request = Request { id: 9, ticket: 0, due_ns: 0 };
    for answer in [
        &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Check: 1\r\nY:\r\n\r\n"[..],
        b"HTTP/1.1 200 \xe9\xff\r\nX: \xe9\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b: c\r\nContent-Length:\r\n\t2\r\n\r\nok",
    ] {
        let shown = answer.escape_ascii();
        for len in 0..answer.len() {
            assert_eq!(http.split(&answer[..len]), Ok(None), "{len} bytes of {shown}");
            assert_eq!(http.split_at_end(&answer[..len]), None, "{len} bytes of {shown}");
        }
        let followed = [answer, b"HTTP/1.1 2"].concat();
        assert_eq!(http.split(&followed), Ok(Some(answer.len())), "{shown}");
        assert_eq!(http.check(&request, answer, Medium::Stream), Verdict::Right, "{shown}");
    }
    // No end of the trailers.
    let mut endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n".to_vec();
    endless.resize(40_000, b'x');
    assert_eq!(http.split(&endless), Err(Malformed));
}

#[test]
fn a_body_of_http_may_end_with_its_connection() {
    let http = Http::new("host", &["/"]).unwrap();
    let request = Request { id: 9, ticket: 0, due_ns: 0 };
    for head in ["HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", "HTTP/1.0 200 OK\r\n\r\n"] {
        let answer = format!("{head}ok").into_bytes();
        assert_eq!(http.split(&answer), Ok(None), "more may come");
        assert_eq!(http.split_at_end(&answer), Some(answer.len()));
        assert_eq!(http.split_at_end(&answer[..head.len() - 1]), None, "the head is not complete");
        assert_eq!(http.check(&request, &answer, Medium::Stream), Verdict::Right);
    }
    assert_eq!(http.split_at_end(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no"), None, "cut");
    assert_eq!(http.split_at_end(b""), None);
}

#[test]
fn streams_that_cannot_be_answers_are_refused() {
    let streams: [(&str, &[u8]); 10] = [
        ("http", b"HTTP/1.1 101 Switching Protocols\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        ("spin", &[0; 40]),
        ("rocks", &[0; 32]),
        ("memcached", b"VALUE a 0 99999999999999999999\r\n"),
        ("memcached", b"VALUE a 0\r\n"),
        ("memcached", &[b'x'; 600]),
        ("dns", &[0, 5, 1, 2, 3, 4, 5]),
        ("http", b"SSH-2.0-Server\r\n"),
        ("http", b"HTTP/2"),
        ("http", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
    ];
    for (name, stream) in streams {
        let all = protocols(Medium::Stream);
        let protocol = all.iter().find(|protocol| protocol.name() == name).unwrap();
        assert_eq!(protocol.split(stream), Err(Malformed), "{name}");
    }
}

#[test]
fn names_and_parameters_are_read_or_refused_with_advice() {
    let make = |notation: &str| {
        let missing = |_: &str| Err(std::io::Error::from(std::io::ErrorKind::NotFound));
        from_name(notation, Medium::Datagram, &"exp:10us".parse().unwrap(), "host", missing)
    };
    assert_eq!(make("memcached:etc,keys=5").unwrap().preloads(), 5);
    for (notation, fragment) in [
        ("gopher", "use spin"),
        ("spin:1us", "`1us` is not understood; use spin"),
        ("echo:7", "8 to"),
        ("memcached:foo", "etc, usr or ycsb"),
        ("memcached:keys=0", "1 to"),
        ("memcached:get=2", "0..=1"),
        ("rocks:scan=0.6,put=0.6", "sum to at most 1"),
        ("rocks:depth=3", "`depth=3` is not understood; use rocks:keys="),
        ("memcached:usr,key=3", "and keys="),
        ("dns", "dns:FILE"),
        ("dns:", "dns:FILE"),
        ("dns:names.txt", "names.txt"),
        ("http", "TCP"),
    ] {
        let message = make(notation).expect_err(notation).to_string();
        assert!(message.contains(fragment), "{notation}: {message}");
    }
    for (list, fragment) in [("", "not 0"), ("a..b", "line 1"), ("a\nb 300.1.1.1", "line 2")] {
        let message = Dns::from_list(list).expect_err(list).to_string();
        assert!(message.contains(fragment), "{list}: {message}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever pieces a stream comes in, the same answers come out of it.
    #[test]
    fn answers_are_found_however_the_stream_is_cut(
        seed: u64,
        pieces in prop::collection::vec(1usize..200, 1..30),
    ) {
        for protocol in protocols(Medium::Stream) {
            let exchange = exchange(&*protocol, Medium::Stream, seed, 12);
            let whole: Vec<u8> = exchange.iter().flat_map(|(_, answer)| answer.clone()).collect();
            let (mut stream, mut at, mut found) = (Vec::new(), 0, Vec::new());
            for piece in pieces.iter().cycle() {
                let end = (at + piece).min(whole.len());
                stream.extend_from_slice(&whole[at..end]);
                while let Some(len) = protocol.split(&stream).unwrap() {
                    prop_assert!(len > 0 && len <= stream.len(), "{}", protocol.name());
                    found.push(stream.drain(..len).collect::<Vec<u8>>());
                }
                at = end;
                if at == whole.len() {
                    break;
                }
            }
            let want: Vec<Vec<u8>> = exchange.into_iter().map(|(_, answer)| answer).collect();
            prop_assert_eq!(found, want, "{}", protocol.name());
        }
    }

    #[test]
    fn one_changed_byte_is_never_right(seed: u64, at: prop::sample::Index, bit in 0u8..8) {
        for medium in [Medium::Datagram, Medium::Stream] {
            for protocol in protocols(medium) {
                for (request, mut answer) in exchange(&*protocol, medium, seed, 6) {
                    // HTTP learns a body from its first answer, and its head may say what it likes.
                    prop_assert_eq!(protocol.check(&request, &answer, medium), Verdict::Right);
                    let at = at.index(answer.len());
                    answer[at] ^= 1 << bit;
                    let verdict = protocol.check(&request, &answer, medium);
                    prop_assert!(
                        verdict != Verdict::Right || is_free(protocol.name(), medium, at, bit, &answer),
                        "{} byte {} of {:?}", protocol.name(), at, answer
                    );
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_taken_in(bytes in prop::collection::vec(any::<u8>(), 0..300), seed: u64) {
        for medium in [Medium::Datagram, Medium::Stream] {
            for protocol in protocols(medium) {
                if let Ok(Some(len)) = protocol.split(&bytes) {
                    prop_assert!(len > 0 && len <= bytes.len());
                }
                protocol.id(&bytes, medium);
                for (request, mut answer) in exchange(&*protocol, medium, seed, 2) {
                    protocol.check(&request, &bytes, medium);
                    // The beginning of a right one, and anything after.
                    answer.truncate(bytes.len());
                    answer.extend_from_slice(&bytes);
                    let _ = protocol.split(&answer);
                    protocol.check(&request, &answer, medium);
                }
            }
        }
    }
}

/// Returns true if a server may say there what it likes: its time in spin, flags and all but the
/// address in dns, the head of http.
fn is_free(name: &str, medium: Medium, at: usize, bit: u8, answer: &[u8]) -> bool {
    match name {
        "spin" => at >= 32,
        // Its length in these tests.
        "http" => at < 44,
        "dns" => {
            let at = at.saturating_sub(if medium == Medium::Stream { 2 } else { 0 });
            let gone = answer.windows(3).any(|window| window.eq_ignore_ascii_case(b"one"));
            // The length, recursion bits, counts that do not matter, the case of letters, what is
            // said of addresses.
            matches!(at, 0 | 2 | 3 | 8..12) || gone && matches!(at, 6 | 7) || bit == 5 || at > 28
        }
        // The two last of a datagram's head are reserved.
        "memcached" => medium == Medium::Datagram && matches!(at, 6 | 7),
        _ => false,
    }
}
