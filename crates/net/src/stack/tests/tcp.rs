//! Connections between stacks, in virtual time.

use super::hub::Hub;
use super::platform::awaiting;
use super::*;
use crate::stack::tcp::ConnectError;
use crate::tcp::{Failure, Key, Refusal};
use proptest::prelude::*;
use tailwater_tcp::listen::ListenConfig;
use tailwater_tcp::{Config, Error, Events, Flags, Header, Segment, Seq, State, segment, sender};
use tailwater_wire::{Addresses, IcmpHeader, Ipv4Packet, PacketInfo, Report};

pub(super) const SERVER: u16 = 80;
/// Virtual time between two turns of the applications.
const STEP: Duration = Duration::from_millis(1);

fn listen(
    hub: &mut Hub,
    n: u8,
    local: SocketAddr,
    config: ListenConfig,
) -> Arc<crate::tcp::Listening<Threads>> {
    hub.with(n, |stack, _| stack.listen_tcp(local, 100, config)).unwrap()
}

fn connect(hub: &mut Hub, n: u8, to: SocketAddr, config: &Config) -> Arc<Socket> {
    hub.with(n, |stack, catch| stack.connect_tcp(catch, to, config)).unwrap()
}

/// Two hosts with both families that know each other.
pub(super) fn acquainted_hub(seed: u64) -> Hub {
    let mut hub = Hub::new(2, seed, 0, 0);
    hub.hosts = (1..=2).map(|n| Stack::new(config6(n), seed ^ u64::from(n)).unwrap()).collect();
    hub.run(T0 + Duration::from_secs(5));
    hub
}

/// Both ends of a connection from host 1 to host 2.
pub(super) fn pair(hub: &mut Hub, to: SocketAddr, config: &Config) -> [Arc<Socket>; 2] {
    let listening = ListenConfig { connection: config.clone(), ..ListenConfig::default() };
    let everywhere = if to.is_ipv4() { everywhere(to.port()) } else { everywhere6(to.port()) };
    let listening = listen(hub, 2, everywhere, listening);
    let client = connect(hub, 1, to, config);
    for _ in 0..200 {
        hub.run(hub.now + Duration::from_millis(100));
        let accepted = listening.lock().accept();
        if let Some(server) = accepted {
            assert_eq!((server.peer_addr(), server.local_addr()), (client.local_addr(), client.peer_addr()));
            hub.with(2, |stack, catch| stack.close_listening(catch, &listening));
            return [client, server];
        }
    }
    panic!("no connection came about: {:?}", client.lock().connection.error());
}

/// Lets the application of host `n` do something with its socket.
fn call<R>(hub: &mut Hub, n: u8, socket: &Arc<Socket>, act: impl FnOnce(&mut Inner<'_>) -> R) -> R {
    hub.with(n, |stack, catch| {
        let now = Stack::tcp_now(catch);
        let mut inner = socket.lock();
        let mut view = Inner { inner: &mut inner, events: Events::empty() };
        let result = act(&mut view);
        let events = view.events;
        stack.settle(catch, socket, &mut inner, events, now);
        result
    })
}

/// A socket in a call.
struct Inner<'a> {
    inner: &'a mut crate::tcp::Inner<Threads>,
    events: Events,
}

pub(super) fn write(hub: &mut Hub, n: u8, socket: &Arc<Socket>, data: &[u8]) -> Result<usize, Refusal> {
    call(hub, n, socket, |it| it.inner.send(data))
}

pub(super) fn read(hub: &mut Hub, n: u8, socket: &Arc<Socket>) -> Result<Vec<u8>, Refusal> {
    let mut buf = vec![0; 100_000];
    call(hub, n, socket, |it| it.inner.receive(&mut buf, false)).map(|len| {
        buf.truncate(len);
        buf
    })
}

pub(super) fn close(hub: &mut Hub, n: u8, socket: &Arc<Socket>) {
    call(hub, n, socket, |it| it.events = it.inner.connection.close());
}

fn byte(at: usize, n: u8) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)) as u8 ^ n
}

/// Sends `len` bytes each way, reads them, closes. Each byte is checked.
fn exchange(hub: &mut Hub, ends: &[Arc<Socket>; 2], len: usize) {
    let (mut sent, mut received, mut over) = ([0; 2], [0; 2], [false; 2]);
    for _ in 0..300_000 {
        for (i, end) in ends.iter().enumerate() {
            let n = i as u8 + 1;
            if sent[i] < len {
                let wanted = 1 + hub.random.next() as usize % 20_000;
                let data: Vec<_> = (sent[i]..len.min(sent[i] + wanted)).map(|at| byte(at, n)).collect();
                match write(hub, n, end, &data) {
                    Ok(done) => sent[i] += done,
                    Err(refusal) => assert_eq!(refusal, Refusal::WouldBlock),
                }
                if sent[i] == len {
                    close(hub, n, end);
                }
            }
            match read(hub, n, end) {
                Ok(data) if data.is_empty() => over[i] = true,
                Ok(data) => {
                    let from = 3 - n;
                    assert!(
                        data.iter().zip(received[i]..).all(|(&b, at)| b == byte(at, from)),
                        "out of order"
                    );
                    received[i] += data.len();
                }
                Err(refusal) => assert_eq!(refusal, Refusal::WouldBlock),
            }
        }
        if over == [true; 2] {
            assert_eq!(received, [len; 2]);
            return;
        }
        hub.run(hub.now + STEP);
    }
    panic!("stuck: {sent:?} sent, {received:?} received, {over:?}");
}

/// Returns the window that host 1 knows once host 2 has read everything, the last `unread` bytes of
/// it at once.
fn window_after_reading(checksums: Checksums, unread: usize) -> u32 {
    let mut hub = acquainted_hub(41);
    hub.checksums = checksums;
    let ends = pair(&mut hub, at(2, SERVER), &Config::default());
    let unacknowledged = || ends[0].lock().connection.unacknowledged_bytes();
    let drain = |hub: &mut Hub| while read(hub, 2, &ends[1]).is_ok() {};
    // The window grows by what is read, up to its bound.
    for _ in 0..400 {
        while write(&mut hub, 1, &ends[0], &[7; 50_000]).is_ok() {}
        hub.run(hub.now + STEP);
        drain(&mut hub);
    }
    for _ in 0..1000 {
        hub.run(hub.now + STEP);
        drain(&mut hub);
    }
    assert_eq!(unacknowledged(), 0);
    let mut left = unread;
    for _ in 0..1000 {
        left -= write(&mut hub, 1, &ends[0], &vec![7; left.min(50_000)]).unwrap_or(0);
        hub.run(hub.now + STEP);
    }
    assert_eq!((left, unacknowledged()), (0, 0));
    drain(&mut hub);
    // The window update arrives.
    hub.run(hub.now + STEP);
    ends[0].lock().connection.stats().peer_window
}

#[test]
fn a_peer_on_this_machine_is_offered_the_machine_window_and_others_what_the_buffer_holds() {
    assert_eq!(window_after_reading(Trust, 100_000), MACHINE_WINDOW);
    let far = window_after_reading(Verify, 600_000);
    assert!(far > 900 * 1024, "{far} bytes");
}

#[test]
fn segments_to_a_peer_on_this_machine_are_as_long_as_packets_there_may_be() {
    for (checksums, to) in [(Verify, at(2, SERVER)), (Trust, at(2, SERVER)), (Trust, at6(2, SERVER))] {
        let mut hub = acquainted_hub(43);
        hub.checksums = checksums;
        let ends = pair(&mut hub, to, &Config::default());
        // Both have heard of each other then.
        write(&mut hub, 1, &ends[0], b"hello").unwrap();
        hub.run(hub.now + STEP);
        let headers = if to.is_ipv4() { 40 } else { 60 };
        let packet = if checksums == Trust { LOCAL_MTU } else { 1500 };
        for end in &ends {
            let inner = end.lock();
            assert_eq!(inner.connection.path_mss(), packet - headers);
            assert_eq!(inner.connection.max_segment(), u32::from(packet - headers - 12), "timestamps");
        }
        let frames = frames_of(&hub, &ends[0], &[7; 50_000]);
        assert_eq!(frames.iter().map(Vec::len).max(), Some(usize::from(packet) + 14));
    }
}

#[test]
fn a_segment_from_outside_does_not_shorten_what_leaves_for_a_peer_on_this_machine() {
    let mut hub = acquainted_hub(44);
    hub.checksums = Trust;
    let ends = pair(&mut hub, at(2, SERVER), &Config::default());
    let frames = frames_of(&hub, &ends[0], &[7; 100]);
    // As if a station behind a port had sent it.
    hub.with(2, |stack, catch| stack.input(catch, &frames[0], Verify));
    assert_eq!(ends[1].lock().connection.path_mss(), LOCAL_MTU - 40);
}

#[test]
fn a_peer_that_has_moved_behind_a_port_is_reached_with_segments_of_the_link() {
    let mut hub = acquainted_hub(45);
    hub.checksums = Trust;
    let ends = pair(&mut hub, at(2, SERVER), &Config::default());
    let data: Vec<u8> = (0..50_000).map(|at| byte(at, 1)).collect();
    // As a port drops what is too long for it.
    hub.loss_percent = 100;
    write(&mut hub, 1, &ends[0], &data).unwrap();
    hub.run(hub.now + Duration::from_millis(500));
    assert_eq!(ends[0].lock().connection.path_mss(), 1500 - 40);
    (hub.loss_percent, hub.checksums) = (0, Verify);
    hub.run(hub.now + Duration::from_secs(5));
    assert_eq!(read(&mut hub, 2, &ends[1]).unwrap(), data);
    assert_eq!(ends[0].lock().connection.path_mss(), 1500 - 40, "the peer is heard from outside");
    // Both are on this machine again.
    hub.checksums = Trust;
    write(&mut hub, 1, &ends[0], &data).unwrap();
    hub.run(hub.now + Duration::from_secs(5));
    assert_eq!(read(&mut hub, 2, &ends[1]).unwrap(), data);
    assert_eq!(ends[0].lock().connection.path_mss(), LOCAL_MTU - 40);
}

#[test]
fn connections_that_peers_on_this_machine_send_much_on_share_the_machine_window() {
    let mut hub = acquainted_hub(46);
    hub.checksums = Trust;
    let all: Vec<_> = (0..4).map(|n| pair(&mut hub, at(2, SERVER + n), &Config::default())).collect();
    // What the sender knows, and what lies unread.
    let offered = |ends: &[Arc<Socket>; 2]| {
        ends[0].lock().connection.stats().peer_window + ends[1].lock().connection.readable_bytes() as u32
    };
    // One of them alone has the whole of it, in the end.
    let send = |hub: &mut Hub, ends: &[Arc<Socket>; 2]| {
        let _ = write(hub, 1, &ends[0], &[7; 60_000]);
        hub.run(hub.now + STEP);
        while read(hub, 2, &ends[1]).is_ok() {}
    };
    (0..100).for_each(|_| send(&mut hub, &all[0]));
    let window = offered(&all[0]);
    assert!((MACHINE_WINDOW / 2..=MACHINE_WINDOW).contains(&window), "{window} bytes");
    for _ in 0..100 {
        all.iter().for_each(|ends| send(&mut hub, ends));
    }
    hub.run(hub.now + STEP);
    for ends in &all {
        let window = offered(ends);
        assert!((MACHINE_WINDOW / 8..=MACHINE_WINDOW / 4).contains(&window), "{window} bytes");
    }
}

#[test]
fn a_connection_leaves_only_time_wait_behind_and_that_for_a_minute() {
    let mut hub = acquainted_hub(1);
    let ends = pair(&mut hub, at(2, SERVER), &Config::default());
    write(&mut hub, 1, &ends[0], &[7; 10_000]).unwrap();
    hub.run(hub.now + STEP);
    assert_eq!(read(&mut hub, 2, &ends[1]).unwrap(), [7; 10_000]);
    for (n, end) in [(1, &ends[0]), (2, &ends[1])] {
        close(&mut hub, n, end);
        hub.run(hub.now + STEP);
    }
    let counters: Vec<_> = hub.hosts.iter().map(Stack::counters).collect();
    assert_eq!(counters[0].tcp_connections + counters[1].tcp_connections, 0);
    assert_eq!((counters[0].tcp_time_waits, counters[1].tcp_time_waits), (1, 0), "who closed first waits");
    assert_eq!((counters[0].tcp_sent_bytes, counters[1].tcp_received_bytes), (10_000, 10_000));
    assert_eq!(
        counters[0].tcp_segments_sent,
        counters[1].tcp_segments_received + 1,
        "the SYN was the listener's"
    );
    for counters in &counters {
        assert_eq!(counters.tcp_resets_sent, 0);
    }
    hub.run(hub.now + Duration::from_secs(61));
    assert_eq!(hub.hosts.iter().map(|host| host.counters().tcp_time_waits).sum::<u64>(), 0);
    assert_eq!(ends.map(|end| Arc::strong_count(&end)), [1, 1], "table and timers have let go");
}

#[test]
fn an_idle_connection_has_no_timer_and_takes_less_than_a_kibibyte() {
    let mut hub = acquainted_hub(2);
    let ends = pair(&mut hub, at(2, SERVER), &Config::default());
    write(&mut hub, 1, &ends[0], b"hello").unwrap();
    hub.run(hub.now + STEP);
    assert_eq!(read(&mut hub, 2, &ends[1]).unwrap(), b"hello");
    hub.run(hub.now + Duration::from_secs(10));
    for (end, host) in ends.iter().zip(&hub.hosts) {
        assert_eq!(host.tcp_deadline(), None);
        let inner = end.lock();
        assert_eq!(inner.connection.next_timeout(), None);
        // The socket with the counts before it, and an entry of the table, which is half full after
        // it has grown. The platform's waiters and a program's handle have the rest.
        let entry = 2 * (size_of::<(Key, Arc<Socket>)>() + 1);
        let fixed = 2 * size_of::<usize>() + size_of::<Socket>() + entry;
        let bytes = fixed + inner.connection.stats().heap_bytes;
        println!("idle connection: {bytes} bytes, {} of them the socket", size_of::<Socket>());
        assert!(bytes <= 1024 - 96, "{bytes} bytes");
    }
}

#[test]
fn a_timer_is_put_off_when_what_it_was_set_for_has_come_and_not_before() {
    let mut hub = acquainted_hub(4);
    let ends = pair(&mut hub, at(2, SERVER), &Config::default());
    hub.run(hub.now + Duration::from_secs(10));
    write(&mut hub, 1, &ends[0], b"hello").unwrap();
    let set = hub.hosts[0].tcp_deadline().expect("a timer for the retransmission");
    hub.with(1, Stack::put_off_timers);
    assert_eq!(hub.hosts[0].tcp_deadline(), Some(set), "nothing is acknowledged");
    // The acknowledgment is delayed.
    while ends[0].lock().connection.unacknowledged_bytes() > 0 {
        assert!(hub.now < set, "acknowledged before the timer fires");
        hub.run(hub.now + Duration::from_micros(100));
    }
    assert_eq!(hub.hosts[0].tcp_deadline(), Some(set), "a deadline that moves away costs nothing");
    hub.with(1, Stack::put_off_timers);
    let needed = ends[0].lock().connection.next_timeout().map(|at| Duration::from_nanos(at.0));
    assert_eq!(hub.hosts[0].tcp_deadline(), needed);
    assert!(needed.is_none_or(|needed| needed > set), "{needed:?} is not after {set:?}");
}

#[test]
fn a_closed_port_refuses_and_a_flood_is_answered_within_the_limit() {
    let mut hub = acquainted_hub(3);
    let socket = connect(&mut hub, 1, at(2, SERVER), &Config::default());
    hub.run(hub.now + STEP);
    assert_eq!(socket.lock().take_failure(), Some(Failure::Protocol(Error::Refused)));
    let now = hub.now + Duration::from_secs(1);
    let mut catch = Catch::at(now);
    for port in 1..=3000 {
        hub.hosts[1].input(&mut catch, &frame_of(header(port, Flags::SYN, 7), b""), Verify);
    }
    assert_eq!(catch.frames.len(), 1000);
    let counters = hub.hosts[1].counters();
    assert_eq!((counters.tcp_resets_sent, counters.tcp_resets_limited), (1001, 2000));
}

#[test]
fn a_connection_counts_as_awaiting_acknowledgments_while_a_thread_may_wait_for_one() {
    let mut hub = acquainted_hub(6);
    let ends = pair(&mut hub, at(2, SERVER), &Config { send_buffer: 10_000, ..Config::default() });
    let rest = |hub: &mut Hub| {
        hub.run(hub.now + Duration::from_secs(2));
        awaiting()
    };
    assert_eq!(rest(&mut hub), 0);
    write(&mut hub, 1, &ends[0], b"an answer").unwrap();
    assert_eq!(awaiting(), 0, "it has left, and no thread waits");
    write(&mut hub, 1, &ends[0], b"behind it, by Nagle's algorithm").unwrap();
    assert_eq!(awaiting(), 1);
    assert_eq!(rest(&mut hub), 0);
    // As much as there is room for, and a writer that finds none.
    write(&mut hub, 1, &ends[0], &[7; 10_000]).unwrap();
    assert_eq!(write(&mut hub, 1, &ends[0], b"more"), Err(Refusal::WouldBlock));
    assert_eq!(awaiting(), 1);
    assert_eq!(rest(&mut hub), 0);
    // A thread that closes lingers.
    write(&mut hub, 1, &ends[0], b"the last").unwrap();
    call(&mut hub, 1, &ends[0], |it| it.inner.set_lingers(true));
    assert_eq!(awaiting(), 1);
    assert_eq!(rest(&mut hub), 0, "all is acknowledged");
    // A connection that fails waits for nothing.
    call(&mut hub, 1, &ends[0], |it| it.inner.set_lingers(false));
    write(&mut hub, 1, &ends[0], &[7; 10_000]).unwrap();
    assert_eq!(write(&mut hub, 1, &ends[0], b"more"), Err(Refusal::WouldBlock));
    assert_eq!(awaiting(), 1);
    call(&mut hub, 1, &ends[0], |it| it.events = it.inner.connection.abort());
    assert_eq!(awaiting(), 0);
}

#[test]
fn a_handshake_counts_as_awaiting_an_acknowledgment_for_a_second() {
    let mut hub = acquainted_hub(6);
    let listening = listen(&mut hub, 2, everywhere(SERVER), ListenConfig::default());
    let mut catch = Catch::at(hub.now);
    let syn = |port| frame_of(header(port, Flags::SYN, 7), b"");
    hub.hosts[1].input(&mut catch, &syn(9), Verify);
    assert_eq!((catch.frames.len(), awaiting()), (1, 1), "the SYN is answered");
    // The client does not exist.
    hub.run(hub.now + Duration::from_millis(1_500));
    assert_eq!(awaiting(), 0, "the answer was repeated");
    catch = Catch::at(hub.now);
    hub.hosts[1].input(&mut catch, &syn(10), Verify);
    assert_eq!(awaiting(), 1);
    hub.with(2, |stack, catch| stack.close_listening(catch, &listening));
    assert_eq!(awaiting(), 0);
    // One that is completed awaits nothing more.
    pair(&mut hub, at(2, SERVER), &Config::default());
    assert_eq!(awaiting(), 0);
}

#[test]
fn a_burst_leaves_in_batches_and_an_answer_at_once() {
    let mut hub = acquainted_hub(5);
    let ends = pair(&mut hub, at(2, SERVER), &Config::default());
    let mut batches = |len: usize, room: usize| {
        hub.run(hub.now + Duration::from_secs(2));
        hub.with(1, |stack, catch| {
            catch.room = room;
            let (now, mut inner) = (Stack::tcp_now(catch), ends[0].lock());
            inner.send(&vec![7; len]).unwrap();
            stack.settle(catch, &ends[0], &mut inner, Events::empty(), now);
            (catch.frames.len(), catch.together.clone())
        })
    };
    assert_eq!(batches(100, usize::MAX), (1, vec![]));
    // The initial window is ten segments (RFC 6928).
    assert_eq!(batches(20_000, usize::MAX), (10, vec![8, 0]));
    assert_eq!(batches(20_000, 5), (5, vec![3]), "what found room leaves");
}

#[test]
fn silence_makes_a_connection_doubt_its_neighbour() {
    // RFC 9293 section 3.8.3, R1: it is asked long before what is known of it gets old.
    for to in [at(2, SERVER), at6(2, SERVER)] {
        let mut hub = acquainted_hub(4);
        let ends = pair(&mut hub, to, &Config::default());
        hub.run(hub.now + Duration::from_secs(2));
        let asked = |hub: &Hub| {
            let counters = hub.hosts[0].counters();
            counters.arp_solicited + counters.nd_solicited
        };
        let before = asked(&hub);
        hub.loss_percent = 100;
        write(&mut hub, 1, &ends[0], b"lost").unwrap();
        hub.run(hub.now + Duration::from_millis(900));
        assert_eq!(asked(&hub), before + 1, "{to}: once a second is enough");
        hub.loss_percent = 0;
        hub.run(hub.now + Duration::from_secs(5));
        assert_eq!(read(&mut hub, 2, &ends[1]).unwrap(), b"lost");
    }
}

fn header(port: u16, flags: Flags, seq: u32) -> Header {
    Header {
        source: port,
        destination: SERVER,
        seq: Seq(seq),
        ack: Seq(0),
        flags,
        window: 1000,
        options: segment::Options::default(),
    }
}

/// Returns a frame with a segment from host 1 to host 2, its checksum right.
fn frame_of(header: Header, data: &[u8]) -> Vec<u8> {
    let addresses = Addresses::V4 { source: ip(1), destination: ip(2) };
    let packet = PacketInfo { addresses, protocol: IpProtocol::TCP, hop_limit: 64, traffic_class: 0 };
    let len = header.len() + data.len();
    let mut frame = vec![0; packet.overhead() + len];
    let (front, rest) = frame.split_at_mut(packet.overhead());
    let stations = tailwater_wire::Stations { source: mac(1), destination: mac(2) };
    packet.write_headers(front, stations, tailwater_wire::Fragmenting::Forbidden, len);
    let at = header.emit(rest);
    rest[at..].copy_from_slice(data);
    let sum = addresses.pseudo_header(IpProtocol::TCP, len).bytes(rest).finish();
    rest[16..18].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[test]
fn checksums_are_left_out_as_long_as_the_peers_are_vouched_for_and_somebody_fills_them_in() {
    let mut hub = acquainted_hub(23);
    let ends = pair(&mut hub, at(2, SERVER), &Config::default());
    for (vouched, completes) in [(true, true), (true, false), (false, true), (true, true)] {
        let frames = frames_of(&hub, &ends[0], &[7; 100]);
        assert_eq!(frames.len(), 1);
        let checksums = if vouched { Trust } else { Verify };
        hub.with(2, |stack, catch| stack.input(catch, &frames[0], checksums));
        let mut catch = Catch { completes, ..Catch::at(hub.now) };
        let now = Stack::tcp_now(&catch);
        let mut inner = ends[1].lock();
        assert_eq!(inner.send(&[8; 100]), Ok(100));
        hub.hosts[1].settle(&mut catch, &ends[1], &mut inner, Events::empty(), now);
        drop(inner);
        let frame = catch.only();
        let (left_out, checksum) = (vouched && completes, u16::from_be_bytes([frame[50], frame[51]]));
        assert_eq!(
            (checksum == 0, catch.incomplete),
            (left_out, u32::from(left_out)),
            "{vouched} {completes}"
        );
        hub.with(1, |stack, catch| stack.input(catch, &frame, checksums));
        hub.run(hub.now + Duration::from_millis(100));
    }
    assert_eq!(hub.hosts.iter().map(|host| host.counters().bad_checksums).sum::<u64>(), 0);
}

#[test]
fn a_wrong_checksum_is_nobodys_segment() {
    let mut hub = acquainted_hub(4);
    listen(&mut hub, 2, everywhere(SERVER), ListenConfig::default());
    let (now, mut frame) = (hub.now, frame_of(header(9, Flags::SYN, 1), b""));
    let last = frame.len() - 1;
    frame[last] ^= 1;
    let mut catch = Catch::at(now);
    hub.hosts[1].input(&mut catch, &frame, Verify);
    assert!(catch.is_empty());
    assert_eq!(hub.hosts[1].counters().bad_checksums, 1);
    hub.hosts[1].input(&mut catch, &frame, Trust);
    assert_eq!(catch.frames.len(), 1, "vouched for");
}

#[test]
fn a_flood_of_syns_is_remembered_within_bounds_and_honest_clients_get_in() {
    let mut hub = acquainted_hub(5);
    let config = ListenConfig { syn_queue: 16, ..ListenConfig::default() };
    let listening = listen(&mut hub, 2, everywhere(SERVER), config);
    let mut catch = Catch::at(hub.now);
    for port in 1..=5000 {
        hub.hosts[1].input(&mut catch, &frame_of(header(port, Flags::SYN, 7), b""), Verify);
    }
    let counters = hub.hosts[1].counters();
    assert_eq!((counters.tcp_cookies_sent, counters.tcp_connections), (5000 - 16, 0));
    let client = connect(&mut hub, 1, at(2, SERVER), &Config::default());
    hub.run(hub.now + STEP);
    let server = listening.lock().accept().expect("a cookie brought it in");
    assert_eq!(client.lock().connection.state(), State::Established);
    assert_eq!(server.lock().connection.state(), State::Established);
    assert_eq!(hub.hosts[1].counters().tcp_cookies_accepted, 1);
}

#[test]
fn a_full_way_out_delays_and_loses_nothing() {
    let mut hub = acquainted_hub(6);
    let ends = pair(&mut hub, at(2, SERVER), &Config::default());
    let mut full = Catch { room: 0, ..Catch::at(hub.now) };
    let now = Stack::tcp_now(&full);
    {
        let mut inner = ends[0].lock();
        inner.send(b"waits for room").unwrap();
        hub.hosts[0].settle(&mut full, &ends[0], &mut inner, Events::empty(), now);
    }
    let retry = full.poll_by.expect("a second try is wanted");
    assert!(retry - hub.now <= Duration::from_millis(1), "soon");
    hub.run(retry + STEP);
    assert_eq!(read(&mut hub, 2, &ends[1]).unwrap(), b"waits for room");
    assert_eq!(hub.hosts[0].counters().tcp_retransmitted, 0, "it was never sent before");
}

#[test]
fn a_batch_of_segments_is_acknowledged_once_and_a_gap_at_once() {
    let mut hub = acquainted_hub(11);
    let ends = pair(&mut hub, at(2, SERVER), &Config::default());
    let segments = |hub: &Hub, len: usize| {
        let mut catch = Catch::at(hub.now);
        let now = Stack::tcp_now(&catch);
        let mut inner = ends[0].lock();
        inner.send(&vec![7; len]).unwrap();
        hub.hosts[0].settle(&mut catch, &ends[0], &mut inner, Events::empty(), now);
        catch.frames
    };
    let frames = segments(&hub, 1448 * 8);
    assert_eq!(frames.len(), 8);
    let (mut batch, mut catch) = (Deferred::default(), Catch::at(hub.now));
    for frame in &frames {
        hub.hosts[1].input_in_batch(&mut batch, &mut catch, frame, Verify);
    }
    assert!(catch.is_empty());
    assert_eq!(batch.0.len(), 1, "once");
    hub.hosts[1].flush_tcp(&mut catch, &batch.0[0]);
    let ack = catch.only();
    let mut more = Catch::at(hub.now);
    hub.hosts[0].input(&mut more, &ack, Verify);
    assert_eq!(ends[0].lock().connection.unacknowledged_bytes(), 0, "all eight");
    let frames = segments(&hub, 1448 * 3);
    let (mut batch, mut catch) = (Deferred::default(), Catch::at(hub.now));
    hub.hosts[1].input_in_batch(&mut batch, &mut catch, &frames[1], Verify);
    assert_eq!((catch.frames.len(), batch.0.len()), (1, 0), "the sender is to know at once");
}

/// Makes host 1 send `data` and returns the frames, which reach no host.
fn frames_of(hub: &Hub, socket: &Arc<Socket>, data: &[u8]) -> Vec<Vec<u8>> {
    let mut catch = Catch::at(hub.now);
    let now = Stack::tcp_now(&catch);
    let mut inner = socket.lock();
    assert_eq!(inner.send(data), Ok(data.len()));
    hub.hosts[0].settle(&mut catch, socket, &mut inner, Events::empty(), now);
    catch.frames
}

#[test]
fn a_batch_taken_over_by_another_kthread_overtakes_the_rest_and_is_put_back_in_order() {
    let mut hub = acquainted_hub(21);
    let ends = pair(&mut hub, at(2, SERVER), &Config::default());
    let data: Vec<u8> = (0..8 * 1448).map(|at| byte(at, 1)).collect();
    let frames = frames_of(&hub, &ends[0], &data);
    assert_eq!(frames.len(), 8);
    for range in [4..8, 0..4] {
        hub.with(2, |stack, catch| frames[range].iter().for_each(|frame| stack.input(catch, frame, Verify)));
    }
    assert_eq!(read(&mut hub, 2, &ends[1]).unwrap(), data);
    let counters = hub.hosts[1].counters();
    assert_eq!((counters.tcp_out_of_order, counters.tcp_resequenced_bytes), (4, 4 * 1448));
}

#[test]
fn segments_that_several_kthreads_process_at_once_come_out_in_order() {
    const KTHREADS: usize = 4;
    let mut hub = acquainted_hub(22);
    let ends = pair(&mut hub, at(2, SERVER), &Config::default());
    let (mut sent, mut received) = (0, 0);
    for _ in 0..500 {
        let data: Vec<u8> = (sent..sent + 8 * 1448).map(|at| byte(at, 1)).collect();
        sent += data.len();
        let frames = frames_of(&hub, &ends[0], &data);
        let (stack, now) = (&hub.hosts[1], hub.now);
        let start = std::sync::Barrier::new(KTHREADS);
        let answers: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let kthread = |number: usize| {
                let (frames, start) = (&frames, &start);
                scope.spawn(move || {
                    let mut catch = Catch::at(now);
                    start.wait();
                    frames
                        .iter()
                        .skip(number)
                        .step_by(KTHREADS)
                        .for_each(|it| stack.input(&mut catch, it, Verify));
                    catch.frames
                })
            };
            let all: Vec<_> = (0..KTHREADS).map(kthread).collect();
            all.into_iter().flat_map(|it| it.join().unwrap()).collect()
        });
        hub.with(1, |stack, catch| answers.iter().for_each(|frame| stack.input(catch, frame, Verify)));
        // What was taken for lost is sent again.
        hub.run(hub.now + Duration::from_millis(20));
        while let Ok(data) = read(&mut hub, 2, &ends[1]) {
            assert!(data.iter().zip(received..).all(|(&b, at)| b == byte(at, 1)), "out of order");
            received += data.len();
        }
        assert_eq!(received, sent);
    }
}

#[test]
fn without_a_link_connections_to_others_fail_and_those_within_go_on() {
    let mut hub = acquainted_hub(7);
    let [client, _server] = pair(&mut hub, at(2, SERVER), &Config::default());
    let listening = listen(&mut hub, 1, everywhere(SERVER), ListenConfig::default());
    let local = connect(&mut hub, 1, at(1, SERVER), &Config::default());
    let mut batch = LoopbackBatch::default();
    let mut settle = |hub: &mut Hub| {
        while hub.hosts[0].take_loopback(&mut batch) {
            hub.with(1, |stack, catch| batch.packets().for_each(|packet| stack.input_local(catch, &packet)));
        }
    };
    settle(&mut hub);
    let accepted = listening.lock().accept().unwrap();
    hub.with(1, Stack::set_link_down);
    assert_eq!(client.lock().take_failure(), Some(Failure::Down));
    let refused = hub.with(1, |stack, catch| stack.connect_tcp(catch, at(2, SERVER), &Config::default()));
    assert_eq!(refused.map(|_| ()), Err(ConnectError::Send(SendError::Down)));
    write(&mut hub, 1, &local, b"within").unwrap();
    settle(&mut hub);
    assert_eq!(read(&mut hub, 1, &accepted).unwrap(), b"within");
}

#[test]
fn a_router_narrows_the_path_of_a_connection_whose_segment_it_quotes() {
    assert_eq!(mss_after_a_report(Verify), (1000 - 20 - 20 - 12, 1));
}

#[test]
fn no_router_narrows_the_path_to_a_peer_on_this_machine() {
    assert_eq!(mss_after_a_report(Trust), (u32::from(LOCAL_MTU) - 20 - 20 - 12, 0));
}

/// Returns the segment size of a connection after a router has quoted its segment in a report of
/// 1000 bytes, and how many paths are narrower.
fn mss_after_a_report(checksums: Checksums) -> (u32, u64) {
    let mut hub = acquainted_hub(8);
    hub.checksums = checksums;
    let ends = pair(&mut hub, at(2, SERVER), &Config::default());
    // The segment is lost, and a router says why.
    let mut catch = Catch::at(hub.now);
    let now = Stack::tcp_now(&catch);
    {
        let mut inner = ends[0].lock();
        inner.send(&[7; 1400]).unwrap();
        hub.hosts[0].settle(&mut catch, &ends[0], &mut inner, Events::empty(), now);
    }
    let lost = catch.only();
    let quoted = &lost[14..14 + 28];
    let before = ends[0].lock().connection.stats().mss;
    let complain = |hub: &Hub, quoted: &[u8]| {
        let body = [quoted, &[]];
        let mut icmp = IcmpHeader::error(Report::Protocol { pointer: 0 }, body).unwrap().to_bytes().to_vec();
        icmp[1] = 4; // fragmentation needed
        icmp[6..8].copy_from_slice(&1000u16.to_be_bytes());
        icmp[2..4].fill(0);
        let sum = Sum::new().bytes(&icmp).bytes(quoted).finish();
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        let addresses = Addresses::V4 { source: ip(254), destination: ip(1) };
        let packet = PacketInfo { addresses, protocol: IpProtocol::ICMP, hop_limit: 64, traffic_class: 0 };
        let len = icmp.len() + quoted.len();
        let mut front = vec![0; packet.overhead()];
        let stations = tailwater_wire::Stations { source: mac(2), destination: mac(1) };
        packet.write_headers(&mut front, stations, tailwater_wire::Fragmenting::Forbidden, len);
        hub.hosts[0].input(&mut Catch::at(hub.now), &[&front[..], &icmp, quoted].concat(), Verify);
    };
    let mut forged = quoted.to_vec();
    forged[24] ^= 0x40; // a number that is not in flight
    complain(&hub, &forged);
    assert_eq!(ends[0].lock().connection.stats().mss, before);
    complain(&hub, quoted);
    let mss = ends[0].lock().connection.stats().mss;
    (mss, hub.hosts[0].counters().paths_narrowed)
}

#[test]
fn data_of_a_connection_with_ecn_says_so_in_the_ip_header() {
    let mut hub = acquainted_hub(9);
    let config = Config { ecn: true, ..Config::default() };
    let ends = pair(&mut hub, at(2, SERVER), &config);
    let mut catch = Catch::at(hub.now);
    let now = Stack::tcp_now(&catch);
    let mut inner = ends[0].lock();
    inner.send(b"marked").unwrap();
    hub.hosts[0].settle(&mut catch, &ends[0], &mut inner, Events::empty(), now);
    let frame = catch.only();
    let packet = Ipv4Packet::parse(&frame[14..], Checksums::Verify).unwrap();
    assert_eq!(packet.header.traffic_class(), 2, "ECT(0)");
    assert_eq!(Segment::parse(packet.payload).unwrap().payload, b"marked");
}

#[test]
fn a_later_syn_takes_the_place_of_time_wait_and_an_old_one_does_not() {
    let mut hub = acquainted_hub(12);
    let ends = pair(&mut hub, at(2, SERVER), &Config::default());
    listen(&mut hub, 2, everywhere(SERVER), ListenConfig::default());
    let port = ends[0].local_addr().port();
    close(&mut hub, 2, &ends[1]);
    hub.run(hub.now + STEP);
    // The client's FIN, caught for its number.
    let mut catch = Catch::at(hub.now);
    let now = Stack::tcp_now(&catch);
    {
        let mut inner = ends[0].lock();
        let events = inner.connection.close();
        hub.hosts[0].settle(&mut catch, &ends[0], &mut inner, events, now);
    }
    let fin = catch.only();
    let packet = Ipv4Packet::parse(&fin[14..], Checksums::Verify).unwrap();
    let number = Segment::parse(packet.payload).unwrap().header.seq;
    hub.with(2, |stack, catch| stack.input(catch, &fin, Verify));
    assert_eq!(hub.hosts[1].counters().tcp_time_waits, 1);
    let answer = |seq: Seq| {
        let mut catch = Catch::at(hub.now);
        hub.hosts[1].input(&mut catch, &frame_of(header(port, Flags::SYN, seq.0), b""), Verify);
        let frame = catch.only();
        let packet = Ipv4Packet::parse(&frame[14..], Checksums::Verify).unwrap();
        Segment::parse(packet.payload).unwrap().header.flags
    };
    assert_eq!(answer(number), Flags::ACK, "what is known already");
    assert_eq!(hub.hosts[1].counters().tcp_time_waits, 1);
    assert_eq!(answer(number + 70_000), Flags::SYN | Flags::ACK);
    assert_eq!(hub.hosts[1].counters().tcp_time_waits, 0);
}

#[test]
fn there_are_no_more_connections_than_configured() {
    let mut hub = acquainted_hub(10);
    hub.hosts[0] = Stack::new(NetConfig { tcp_connections: 3, ..config(1) }, 1).unwrap();
    let sockets: Vec<_> = (0..3).map(|_| connect(&mut hub, 1, at(2, SERVER), &Config::default())).collect();
    let fourth = hub.with(1, |stack, catch| stack.connect_tcp(catch, at(2, SERVER), &Config::default()));
    assert_eq!(fourth.map(|_| ()), Err(ConnectError::TooMany(3)));
    hub.run(hub.now + STEP);
    assert_eq!(sockets[0].lock().connection.state(), State::Closed, "refused by now");
    connect(&mut hub, 1, at(2, SERVER), &Config::default());
}

/// Returns a connection's settings on a link that loses frames: what is lost is sent again at least
/// every 100 ms.
fn impatient() -> Config {
    let sender = sender::Config {
        initial_rto: Duration::from_millis(100),
        max_rto: Duration::from_millis(100),
        ..sender::Config::default()
    };
    Config { sender, syn_retries: u8::MAX, ..Config::default() }
}

#[test]
fn a_handshake_gets_through_a_link_that_loses_a_fifth_of_all_frames() {
    for seed in 0..50 {
        let mut hub = acquainted_hub(seed);
        let to = at(2, SERVER);
        hub.with(1, |stack, catch| {
            let endpoint = stack.bind_udp(everywhere(0)).unwrap();
            stack.send_udp(catch, endpoint, endpoint.bound(), to, b"hello").unwrap();
        });
        hub.run(hub.now + Duration::from_secs(1));
        hub.loss_percent = 20;
        let listening = ListenConfig { connection: impatient(), ..ListenConfig::default() };
        let listening = listen(&mut hub, 2, everywhere(SERVER), listening);
        let client = connect(&mut hub, 1, to, &impatient());
        // Each 100 ms a SYN and its answer pass (0.64), and after that the first data (0.8): that
        // neither both nor the second happened in 20 s, 200 attempts, has a probability below 200 *
        // 0.36^199 < 10^-85.
        let accepted = (0..200).find_map(|_| {
            hub.run(hub.now + Duration::from_millis(100));
            let _ = write(&mut hub, 1, &client, b"x");
            listening.lock().accept()
        });
        let accepted =
            accepted.unwrap_or_else(|| panic!("seed {seed}: {:?}", client.lock().connection.error()));
        assert_eq!(accepted.peer_addr(), client.local_addr());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the link loses, repeats and reorders, each byte arrives once and in order, and
    /// nothing stays behind.
    #[test]
    fn a_bad_link_delays_bytes_and_nothing_else(
        seed: u64, loss in 0u64..20, repeats in 0u64..20, six: bool, len in 1usize..150_000,
    ) {
        let mut hub = acquainted_hub(seed);
        let to = if six { at6(2, SERVER) } else { at(2, SERVER) };
        let ends = pair(&mut hub, to, &impatient());
        (hub.loss_percent, hub.repeat_percent) = (loss, repeats);
        // A segment and its ACK pass with 0.66 or more, and are tried each 100 ms at least. The 300
        // s that `exchange` waits are 3,000 attempts for at most 300 segments: fewer successes have
        // a probability below 10^-600.
        exchange(&mut hub, &ends, len);
        (hub.loss_percent, hub.repeat_percent) = (0, 0);
        hub.run(hub.now + Duration::from_secs(400));
        for host in &hub.hosts {
            let counters = host.counters();
            prop_assert_eq!(counters.tcp_connections + counters.tcp_time_waits, 0);
            prop_assert_eq!(counters.malformed + counters.bad_checksums + counters.martian_sources, 0);
            prop_assert_eq!(counters.tcp_received_bytes, len as u64);
        }
        prop_assert_eq!(ends.map(|end| Arc::strong_count(&end)), [1, 1]);
    }
}
