//! Two instances of one host: the later one gets all frames, and the earlier one what is passed on.

use super::*;
use crate::Instance;
use tailwater_tcp::listen::ListenConfig;
use tailwater_tcp::{Config, State};
use tailwater_wire::Report;

const PORT: u16 = 80;

/// A client, host 1, and the two instances of host 2, joined by links without loss.
struct Hosts {
    client: Stack,
    earlier: Stack,
    later: Stack,
    /// The later one has the address.
    replaced: bool,
    /// What is to be delivered: to the client, or to the address of the instances.
    to_client: Vec<Vec<u8>>,
    to_service: Vec<Vec<u8>>,
    /// Segments that the client was sent with RST, of either instance.
    resets: u32,
}

impl Hosts {
    fn new() -> Self {
        let (client, earlier) = paths::pair(1500);
        let later = announced(Stack::new(config6(2), 4711).unwrap());
        let (to_client, to_service) = (Vec::new(), Vec::new());
        let hosts = Self { client, earlier, later, replaced: false, to_client, to_service, resets: 0 };
        let question = ArpPacket {
            operation: ArpOperation::Request,
            sender_mac: mac(1),
            sender_ip: ip(1),
            target_mac: MacAddr::ZERO,
            target_ip: ip(2),
        };
        hosts.later.input(&mut Catch::at(T0), &arp_frame(MacAddr::BROADCAST, question), Verify);
        hosts
    }

    fn replace(&mut self) {
        self.replaced = true;
        self.earlier.set_instance(Instance::Earlier);
        self.later.set_instance(Instance::Later);
    }

    fn end_earlier(&mut self) {
        self.earlier = host6(9);
        self.later.set_instance(Instance::Only);
    }

    fn connect(&mut self) -> Arc<Socket> {
        let mut catch = Catch::at(T0);
        let socket = self.client.connect_tcp(&mut catch, at(2, PORT), &Config::default()).unwrap();
        self.to_service.append(&mut catch.frames);
        socket
    }

    /// Delivers one frame; false if none waits.
    fn step(&mut self) -> bool {
        let mut catch = Catch::at(T0);
        if !self.to_client.is_empty() {
            let frame = self.to_client.remove(0);
            if frame[23] == IpProtocol::TCP.0 && frame[47] & 4 != 0 {
                self.resets += 1;
            }
            self.client.input(&mut catch, &frame, Verify);
            self.to_service.append(&mut catch.frames);
            return true;
        }
        if self.to_service.is_empty() {
            return false;
        }
        let frame = self.to_service.remove(0);
        let first = if self.replaced { &self.later } else { &self.earlier };
        first.input(&mut catch, &frame, Verify);
        for (passed, checksums) in core::mem::take(&mut catch.passed_on) {
            assert_eq!((&passed, checksums), (&frame, Verify), "as it was received");
            self.earlier.input(&mut catch, &passed, checksums);
            assert!(catch.passed_on.is_empty());
        }
        self.to_client.append(&mut catch.frames);
        true
    }

    fn run(&mut self) {
        while self.step() {}
    }

    fn write(&mut self, socket: &Arc<Socket>) {
        let mut catch = Catch::at(T0);
        let now = Stack::tcp_now(&catch);
        let mut inner = socket.lock();
        inner.send(b"request").unwrap();
        self.client.settle(&mut catch, socket, &mut inner, tailwater_tcp::Events::TRANSMIT, now);
        drop(inner);
        self.to_service.append(&mut catch.frames);
    }
}

fn listen(stack: &Stack) -> Arc<crate::tcp::Listening<Threads>> {
    stack.listen_tcp(everywhere6(PORT), 8, ListenConfig::default()).unwrap()
}

fn received(socket: &Arc<Socket>) -> usize {
    socket.lock().receive(&mut [0; 100], false).unwrap_or(0)
}

fn state(socket: &Arc<Socket>) -> State {
    socket.lock().connection.state()
}

#[test]
fn connections_stay_where_they_were_opened_and_new_ones_go_where_a_listener_is() {
    let mut hosts = Hosts::new();
    let old = listen(&hosts.earlier);
    let first = hosts.connect();
    hosts.run();
    let at_first = old.lock().accept().unwrap();
    hosts.replace();
    // The later instance has no listener yet.
    let second = hosts.connect();
    hosts.run();
    let at_second = old.lock().accept().unwrap();
    let new = listen(&hosts.later);
    let third = hosts.connect();
    hosts.run();
    assert!(old.lock().accept().is_none());
    let at_third = new.lock().accept().unwrap();
    for socket in [&first, &second, &third] {
        hosts.write(socket);
    }
    hosts.run();
    for (client, service) in [(&first, &at_first), (&second, &at_second), (&third, &at_third)] {
        assert_eq!((state(client), received(service)), (State::Established, 7));
    }
    assert!(hosts.later.counters().passed_on >= 2);
    // At the end of the earlier one, its peers learn of it by their next segment.
    hosts.end_earlier();
    hosts.write(&first);
    hosts.write(&third);
    hosts.run();
    assert_eq!((state(&first), state(&third), hosts.resets), (State::Closed, State::Established, 1));
    assert_eq!(received(&at_third), 7);
}

#[test]
fn a_handshake_that_one_instance_has_begun_is_completed_by_it() {
    for steps in 1..4 {
        let mut hosts = Hosts::new();
        let old = listen(&hosts.earlier);
        let client = hosts.connect();
        for _ in 0..steps {
            hosts.step();
        }
        hosts.replace();
        let new = listen(&hosts.later);
        hosts.run();
        hosts.write(&client);
        hosts.run();
        let service = old.lock().accept().expect("the earlier one has its SYN");
        assert_eq!((state(&client), received(&service), hosts.resets), (State::Established, 7, 0), "{steps}");
        assert!(new.lock().accept().is_none());
    }
}

#[test]
fn a_repeated_syn_is_answered_by_both_and_completed_by_the_one_that_the_client_heard() {
    let mut hosts = Hosts::new();
    let (old, client) = (listen(&hosts.earlier), hosts.connect());
    let syn = hosts.to_service[0].clone();
    hosts.step();
    hosts.replace();
    let new = listen(&hosts.later);
    // As if it were repeated before its answer arrived.
    hosts.to_service.push(syn);
    let heard = hosts.to_client.pop().unwrap();
    hosts.step();
    hosts.to_client.insert(0, heard);
    hosts.run();
    hosts.write(&client);
    hosts.run();
    let service = old.lock().accept().expect("its answer came first");
    assert_eq!((state(&client), received(&service), hosts.resets), (State::Established, 7, 0));
    assert!(new.lock().accept().is_none());
}

#[test]
fn a_forged_syn_does_not_keep_the_segments_of_a_client_from_the_instance_that_serves_it() {
    let mut hosts = Hosts::new();
    let (old, client) = (listen(&hosts.earlier), hosts.connect());
    let mut forged = hosts.to_service[0].clone();
    hosts.run();
    let service = old.lock().accept().unwrap();
    hosts.replace();
    let new = listen(&hosts.later);
    // The same flow and another sequence number; no checksum is verified.
    forged[38] ^= 0x55;
    hosts.later.input(&mut Catch::at(T0), &forged, Trust);
    assert_eq!(hosts.later.handshakes(), 1);
    hosts.write(&client);
    hosts.run();
    assert_eq!((state(&client), received(&service), hosts.resets), (State::Established, 7, 0));
    assert!(new.lock().accept().is_none());
}

#[test]
fn the_earlier_instance_is_silent_about_what_is_passed_on_to_its_listener() {
    let mut hosts = Hosts::new();
    let client = hosts.connect();
    let old = listen(&hosts.earlier);
    hosts.run();
    let service = old.lock().accept().unwrap();
    hosts.replace();
    // A connection that neither has, to a port at which the earlier one listens.
    hosts.earlier.abort_tcp(&mut Catch::at(T0), &service);
    hosts.write(&client);
    hosts.run();
    assert_eq!((state(&client), hosts.resets), (State::Established, 0));
}

#[test]
fn a_client_that_only_waits_learns_of_the_end_of_the_instance_that_served_it() {
    let mut hosts = Hosts::new();
    let lost = hosts.connect();
    let old = listen(&hosts.earlier);
    hosts.run();
    hosts.replace();
    let new = listen(&hosts.later);
    let kept = hosts.connect();
    hosts.run();
    assert!(old.lock().accept().is_some() && new.lock().accept().is_some());
    let report = departed::report_about(ip(2).into(), ip(2).into(), Report::Host, IpProtocol::TCP);
    for (is_known, expected) in [(false, State::Established), (true, State::Closed)] {
        let mut catch = Catch::at(T0);
        if is_known {
            hosts.end_earlier();
        } else {
            // The later one does not know yet; a frame that it passes on is lost.
            hosts.earlier = host6(9);
        }
        hosts.client.input(&mut catch, &report, Trust);
        hosts.to_service.append(&mut catch.frames);
        hosts.run();
        assert_eq!((state(&lost), state(&kept)), (expected, State::Established), "{is_known}");
    }
}

#[test]
fn nothing_is_refused_while_the_other_instance_may_have_the_socket() {
    let mut hosts = Hosts::new();
    hosts.replace();
    let client = hosts.connect();
    hosts.run();
    // Neither listens: the client tries again.
    assert_eq!((state(&client), hosts.resets), (State::SynSent, 0));
    hosts.earlier.bind_udp(everywhere(7)).unwrap();
    for port in [7, 8] {
        hosts.to_service.push(frames::udp((mac(1), mac(2)), (ip(1), 9), (ip(2), port), b"data"));
    }
    hosts.run();
    assert_eq!(hosts.earlier.counters().udp_received, 1);
    assert!(hosts.to_client.is_empty());
    // A packet to all reaches the earlier one by itself.
    let to_all = frames::udp((mac(1), MacAddr::BROADCAST), (ip(1), 9), (Ipv4Addr::BROADCAST, 8), b"data");
    let mut catch = Catch::at(T0);
    hosts.later.input(&mut catch, &to_all, Verify);
    assert!(catch.passed_on.is_empty());
    hosts.end_earlier();
    hosts.to_service.push(frames::udp((mac(1), mac(2)), (ip(1), 9), (ip(2), 8), b"data"));
    while !hosts.to_service.is_empty() {
        hosts.step();
    }
    assert_eq!(hosts.to_client.len(), 1, "now it is known that there is no such socket");
}

#[test]
fn the_answer_of_a_neighbour_reaches_both() {
    let mut hosts = Hosts::new();
    hosts.replace();
    let mut catch = Catch::at(T0);
    hosts.later.input(&mut catch, &arp_reply(1, 2), Verify);
    assert_eq!(catch.passed_on, [(arp_reply(1, 2), Verify)]);
    assert_eq!(hosts.later.counters().passed_on, 1);
}

#[test]
fn a_handshake_within_an_instance_waits_for_room_at_its_listener() {
    for instance in [Instance::Only, Instance::Later, Instance::Earlier] {
        let stack = host6(1);
        stack.set_instance(instance);
        let listening = stack.listen_tcp(everywhere6(PORT), 1, ListenConfig::default()).unwrap();
        let mut catch = Catch::at(T0);
        // Both SYNs find room, and the acknowledgment of the second one finds none.
        let clients = [0, 1].map(|_| stack.connect_tcp(&mut catch, at(1, PORT), &Config::default()).unwrap());
        let mut batch = LoopbackBatch::default();
        while stack.take_loopback(&mut batch) {
            batch.packets().for_each(|packet| stack.input_local(&mut catch, &packet));
        }
        assert_eq!(clients.each_ref().map(state), [State::Established; 2], "{instance:?}");
        assert!(listening.lock().accept().is_some());
        assert!(listening.lock().accept().is_none(), "its acknowledgment was dropped");
        assert_eq!((stack.counters().tcp_resets_sent, stack.handshakes()), (0, 1), "{instance:?}");
    }
}
