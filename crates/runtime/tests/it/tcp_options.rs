//! Socket options of Linux, through the public API, standalone. One runtime per process, so one
//! test function runs all.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};
use tailwater::future::block_on;
use tailwater::net::{TcpListener, TcpOptions, TcpStream};
use tailwater::readiness::{Events, Interest, Mode, Poller, Token};
use tailwater::thread;
use tailwater_testkit::own_process;

#[test]
fn options_do_what_they_do_on_linux() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(2)
            .run(|| {
                a_cork_makes_one_segment_of_several_writes();
                a_flush_sends_what_more_holds();
                a_future_announces_more();
                a_writer_waits_at_the_low_water_mark_and_goes_on();
                a_poller_reports_room_below_the_low_water_mark();
                a_segment_size_has_bounds();
                a_syn_carries_the_request_once_there_is_a_cookie();
                a_listener_without_fast_open_is_reached_as_usual();
                a_future_connects_with_data();
            })
            .unwrap();
    });
}

fn pair() -> (TcpStream, TcpStream) {
    // A small receive buffer leaves the sender with unsent data.
    let listener = TcpOptions::new().receive_buffer(32 << 10).listen("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Held data leaves after 200 ms: beyond most of that a busy machine may have sent it.
const CORKED: Duration = Duration::from_millis(100);

/// Returns true if `segments` with data left, or if some were sent again, as on a busy machine.
fn has_sent(stream: &TcpStream, segments: u32) -> bool {
    let info = stream.info();
    info.bytes_retrans > 0 || info.data_segs_out == segments
}

/// Returns true if nothing was repeated, as on a busy machine. A SYN that is repeated has no data,
/// and its client may use no Fast Open the next time.
fn was_prompt(ends: [&TcpStream; 2]) -> bool {
    ends.iter().all(|end| end.info().total_retrans == 0)
}

fn read_exactly(stream: &mut impl Read, len: usize) -> Vec<u8> {
    let mut all = vec![0; len];
    stream.read_exact(&mut all).unwrap();
    all
}

fn a_cork_makes_one_segment_of_several_writes() {
    let (mut client, mut server) = pair();
    let began = Instant::now();
    client.set_cork(true).unwrap();
    assert!(client.cork().unwrap());
    for part in [b"one", b"two"] {
        client.write_all(part).unwrap();
    }
    client.set_cork(false).unwrap();
    let prompt = began.elapsed() < CORKED;
    assert_eq!(read_exactly(&mut server, 6), b"onetwo");
    assert_eq!(server.info().bytes_received, 6);
    assert!(!prompt || has_sent(&client, 1), "{:?}", client.info());
}

fn a_flush_sends_what_more_holds() {
    let (mut client, mut server) = pair();
    let began = Instant::now();
    for release in [false, true] {
        let mut more = client.corked();
        more.write_all(b"head").unwrap();
        more.write_all(b"er").unwrap();
        if release { client.flush() } else { more.flush() }.unwrap();
        assert_eq!(read_exactly(&mut server, 6), b"header");
    }
    assert!(began.elapsed() >= CORKED || has_sent(&client, 2), "{:?}", client.info());
}

fn a_future_announces_more() {
    let (client, mut server) = pair();
    let mut client = tailwater::future::net::TcpStream::from(client);
    let began = Instant::now();
    block_on(async {
        client.write_all_more(b"head").await.unwrap();
        client.write_all(b"body").await.unwrap();
    });
    let prompt = began.elapsed() < CORKED;
    assert_eq!(read_exactly(&mut server, 8), b"headbody");
    assert!(!prompt || has_sent(client.get_ref(), 1), "{:?}", client.get_ref().info());
}

fn a_writer_waits_at_the_low_water_mark_and_goes_on() {
    const LEN: usize = 2 << 20;
    const MARK: usize = 16 << 10;
    let (mut client, mut server) = pair();
    client.set_notsent_lowat(Some(MARK)).unwrap();
    assert_eq!(client.notsent_lowat().unwrap(), Some(MARK));
    let observer = client.try_clone().unwrap();
    let writer = thread::spawn(move || client.write_all(&vec![7; LEN]).unwrap());
    let mut left = LEN;
    let mut buf = vec![0; 5000];
    while left > 0 {
        let info = observer.info();
        assert!(info.notsent_bytes as usize <= MARK + info.snd_mss as usize, "{info:?}");
        left -= server.read(&mut buf).unwrap();
    }
    writer.join().unwrap();
    let error = observer.set_notsent_lowat(Some(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

fn a_poller_reports_room_below_the_low_water_mark() {
    // Of what is unsent when the first write would wait, at most the receive buffer leaves later:
    // more than half of the mark stays.
    const MARK: usize = 128 << 10;
    let (mut client, mut server) = pair();
    client.set_nonblocking(true).unwrap();
    client.set_notsent_lowat(Some(MARK)).unwrap();
    let (poller, mut events) = (Poller::new(), Events::with_capacity(1));
    poller.register(&client, Token(0), Interest::WRITABLE, Mode::Level).unwrap();
    poller.wait(&mut events, None);
    assert!(events.iter().next().unwrap().is_writable());
    let mut sent = 0;
    let error = loop {
        match client.write(&[7; 5000]) {
            Ok(len) => sent += len,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    // The peer does not read, so nothing leaves.
    poller.wait(&mut events, Some(Duration::from_millis(20)));
    assert!(events.is_empty());
    let reader = thread::spawn(move || read_exactly(&mut server, sent).len());
    poller.wait(&mut events, None);
    assert!(events.iter().next().unwrap().is_writable());
    let unsent = client.info().notsent_bytes as usize;
    assert!(2 * unsent < MARK, "{unsent} bytes");
    assert_eq!(reader.join().unwrap(), sent);
}

fn a_segment_size_has_bounds() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = TcpOptions::new().max_segment(1012);
    let client = options.connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    assert_eq!((client.max_segment().unwrap(), server.max_segment().unwrap()), (1000, 1000));
    server.set_max_segment(512).unwrap();
    assert_eq!(server.max_segment().unwrap(), 500);
    for bytes in [0, 87, 32_768, 1 << 40] {
        assert_eq!(server.set_max_segment(bytes).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(server.info().snd_mss, 500);
}

fn a_syn_carries_the_request_once_there_is_a_cookie() {
    let options = TcpOptions::new().fast_open(true);
    let listener = options.listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut prompt = true;
    for again in [false, true, true] {
        // More than one segment of the loopback queue holds.
        let request = vec![7; 100_000];
        let client = options.connect_with_data(address, &request).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        assert_eq!(read_exactly(&mut server, request.len()), request);
        server.write_all(b"reply").unwrap();
        assert_eq!(read_exactly(&mut &client, 5), b"reply");
        prompt &= was_prompt([&client, &server]);
        let fast = (client.info().syn_data, server.info().syn_data);
        assert!(!prompt || fast == (again, again), "{fast:?}");
    }
}

fn a_listener_without_fast_open_is_reached_as_usual() {
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    let options = TcpOptions::new().fast_open(true);
    for _ in 0..2 {
        let client = options.connect_with_data(listener.local_addr().unwrap(), b"request").unwrap();
        let (mut server, _) = listener.accept().unwrap();
        assert_eq!(read_exactly(&mut server, 7), b"request");
        assert!(!client.info().syn_data);
    }
}

fn a_future_connects_with_data() {
    let options = TcpOptions::new().fast_open(true).fast_open_pending(1);
    let listener = options.listen("127.0.0.3:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut prompt = true;
    for again in [false, true] {
        let client = block_on(async {
            tailwater::future::net::TcpStream::connect_with_data(address, &options, b"request").await.unwrap()
        });
        let (mut server, _) = listener.accept().unwrap();
        assert_eq!(read_exactly(&mut server, 7), b"request");
        prompt &= was_prompt([client.get_ref(), &server]);
        assert!(!prompt || client.get_ref().info().syn_data == again);
    }
}
