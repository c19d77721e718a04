//! Programs that come under another IOKernel, of which the test plays each step. The tests take
//! turns: until it runs its program, a child has what another test has open.

use rustix::fd::{AsFd, OwnedFd};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SocketFlags, accept_with};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tailwater_shm::control::{self, ClientMessage, ControlError, ServerMessage, Welcome};
use tailwater_shm::grant::{Generation, Grant, NextOwner};
use tailwater_shm::layout::{Region, RegionSpec};
use tailwater_shm::{Clock, KthreadState};
use tailwater_testkit::syscalls::Traced;
use tailwater_testkit::{PATIENCE, eventually, socket_name, until};
use tailwater_tests::{Role, turn};

/// A control socket.
struct Listener(OwnedFd);

/// A registration that was granted.
struct Place {
    control: OwnedFd,
    region: Region,
    _doorbell: OwnedFd,
}

impl Listener {
    fn new(socket: &str) -> Self {
        Self(control::serve(socket, |_| ()).expect("the address is free"))
    }

    /// Waits for a program that connects.
    fn accept(&self) -> OwnedFd {
        let control = eventually("a program connects", || accept_with(&self.0, SocketFlags::CLOEXEC).ok());
        set_socket_timeout(&control, Timeout::Recv, Some(PATIENCE)).expect("a time limit");
        control
    }

    /// Waits for a program that registers, and grants that, up to the announcement of its kthreads.
    /// Attempts that the program gives up are passed over: its kthreads may stop too late on a busy
    /// machine.
    fn grant(&self) -> Place {
        loop {
            let control = self.accept();
            match control::receive_bare(&control) {
                Ok(ClientMessage::Register(request)) => {
                    if let Some(place) = Place::new(control, request.kthreads, request.ring_bytes) {
                        return place;
                    }
                }
                Err(ControlError::Closed) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Grants the registration of `program`, again if that has not waited for the answer.
    fn attach(&self, program: &Role) {
        eventually("the program is attached", || {
            let place = self.grant();
            // Fails if the program has hung up.
            control::send(&place.control, &ServerMessage::Ready, &[]).ok()?;
            let short = Some(Duration::from_millis(20));
            set_socket_timeout(&place.control, Timeout::Recv, short).expect("a time limit");
            eventually("the program answers", || match place.next() {
                Err(ControlError::Closed) => Some(None),
                Err(ControlError::WouldBlock) => is_attached_again(program).then_some(Some(())),
                other => panic!("{other:?}"),
            })
        });
    }
}

impl Place {
    /// Returns `None` if the program hangs up.
    fn new(control: OwnedFd, kthreads: u16, ring_bytes: u32) -> Option<Self> {
        let spec = RegionSpec::new(kthreads, ring_bytes).expect("a valid size");
        let (region, _, file) = Region::create("region", spec, Clock::calibrate(5).hz()).expect("memory");
        let doorbell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("a descriptor");
        let welcome = Welcome {
            ip: Ipv4Addr::new(10, 77, 0, 9),
            prefix_len: 16,
            gateway: None,
            ipv6: None,
            mac: [2, 0, 0, 0, 0, 9],
            mtu: 1500,
            managed_cores: vec![],
            raise: true,
            place: None,
            outgoing: None,
        };
        let files = [file.as_fd(), doorbell.as_fd()];
        control::send(&control, &ServerMessage::Welcome(welcome), &files).ok()?;
        let place = Self { control, region, _doorbell: doorbell };
        matches!(place.next(), Ok(ClientMessage::Kthreads { .. })).then_some(place)
    }

    /// Returns the next message of the program.
    fn next(&self) -> Result<ClientMessage, ControlError> {
        control::receive_bare(&self.control)
    }
}

/// Starts a program whose IOKernel ends before it has lent a core.
fn orphan(socket: &str, role: &str, kthreads: &str) -> Role {
    let listener = Listener::new(socket);
    let iokernel = std::thread::spawn(move || {
        let place = listener.grant();
        control::send(&place.control, &ServerMessage::Ready, &[]).expect("the program waits");
    });
    let variables = [("TAILWATER_IOKERNEL_WAIT_MS", "0"), ("TAILWATER_KTHREADS", kthreads)];
    let role = Role::start_heard(socket, role, "program", "latency-critical", &variables);
    iokernel.join().expect("the program registers");
    role
}

fn is_attached_again(program: &Role) -> bool {
    program.errors().contains("attached to the IOKernel")
}

#[test]
fn an_iokernel_that_does_not_get_ready_is_hung_up_on_and_moves_no_orphan() {
    let _turn = turn();
    let socket = socket_name("rejoin-silent");
    let mut program = orphan(&socket, "burn", "1");
    let listener = Listener::new(&socket);
    let place = listener.grant();
    drop(listener);
    // No answer.
    assert!(matches!(place.next(), Err(ControlError::Closed)));
    until("the failure is written", || program.errors().contains("no answer in time"));
    // As an IOKernel writes that takes back a core of a program which has hung up.
    let grant = &place.region.kthread(0).grant.0;
    grant.store(Grant::Cede { successor: NextOwner::None }, Generation(7));
    until("the kthread withdraws the order", || grant.load() == (Grant::Park, Generation(0)));
    assert!(program.line().is_some(), "the program goes on");
    Listener::new(&socket).attach(&program);
}

/// Lends kthread 0 a core again whenever it has given it up, until `enough`; returns the tenancy in
/// which it runs. A program that starts runs out of work a few times.
fn lend_until(place: &Place, enough: impl Fn() -> bool) -> Generation {
    let words = place.region.kthread(0);
    let lend = |generation| {
        words.grant.0.store(Grant::Run { core: 0 }, generation);
        words.parker.wake_always();
    };
    let mut generation = Generation(1);
    lend(generation);
    until("the program runs", || {
        if words.state.0.load() == (KthreadState::Parked, generation) {
            generation = generation.next();
            lend(generation);
        }
        enough() && words.state.0.load() == (KthreadState::Running, generation)
    });
    generation
}

/// Has an IOKernel write `last_word` as the order to a program that polls, and end; returns how
/// many threads the program resumed in 100,000 polls afterwards, and how many system calls it made.
/// `None` where these cannot be counted, and then prints that the test is skipped.
fn polls_after(last_word: fn(&Place, Generation), wait_ms: &str) -> Option<(u64, u64)> {
    let socket = socket_name("rejoin-cede");
    let listener = Listener::new(&socket);
    let polls = Arc::new(AtomicBool::new(false));
    let iokernel = std::thread::spawn({
        let polls = Arc::clone(&polls);
        move || {
            let place = listener.grant();
            control::send(&place.control, &ServerMessage::Ready, &[]).expect("the program waits");
            let generation = lend_until(&place, || polls.load(Ordering::Relaxed));
            last_word(&place, generation);
        }
    });
    let variables = [("TAILWATER_IOKERNEL_WAIT_MS", wait_ms), ("TAILWATER_KTHREADS", "1")];
    let mut program = Role::start_heard(&socket, "polls", "program", "best-effort", &variables);
    polls.store(true, Ordering::Relaxed);
    iokernel.join().expect("the program runs");
    until("the loss is written", || program.errors().contains("lost the IOKernel"));
    let mut kthread = match Traced::attach(program.pid(), "tailwater/0") {
        Ok(kthread) => kthread,
        Err(why) => {
            eprintln!("skipped: {why}");
            return None;
        }
    };
    program.close_input();
    let calls = kthread.count_until("the program has polled", || program.output().contains("switches"));
    drop(kthread);
    let line = program.line().expect("the program goes on");
    let words: Vec<&str> = line.split(' ').collect();
    let ["switches", switches, "polls", "100000"] = words[..] else { panic!("{line}") };
    Some((switches.parse().expect("a number"), calls))
}

#[test]
fn no_order_of_an_iokernel_that_has_ended_makes_poll_points_slow() {
    let _turn = turn();
    let last_words: [fn(&Place, Generation); 4] = [
        |place, tenancy| store(place, Grant::Cede { successor: NextOwner::None }, tenancy),
        |place, tenancy| store(place, Grant::Cede { successor: NextOwner::Awake }, tenancy),
        // Of a tenancy that is over, or has not begun: the kthread does not obey.
        |place, tenancy| store(place, Grant::Cede { successor: NextOwner::None }, tenancy.next()),
        |place, tenancy| {
            let grant = &place.region.kthread(0).grant.0;
            (0..=255).for_each(|turn| grant.end_turn(0, tenancy, turn));
        },
    ];
    for (number, last_word) in last_words.into_iter().enumerate() {
        for wait_ms in ["0", "600000"] {
            let Some((switches, calls)) = polls_after(last_word, wait_ms) else { return };
            println!("order {number}, {wait_ms} ms: {switches} switches, {calls} system calls");
            // Of 100,000 polls. The line that it prints is a system call, too.
            assert!(switches < 100 && calls < 100, "order {number}: {switches} switches, {calls} calls");
        }
    }
}

fn store(place: &Place, order: Grant, generation: Generation) {
    place.region.kthread(0).grant.0.store(order, generation);
}

#[test]
fn a_kthread_that_reaches_no_poll_point_stops_no_other_and_takes_no_memory_of_the_iokernel() {
    let _turn = turn();
    let socket = socket_name("rejoin-stuck");
    let mut program = orphan(&socket, "stuck", "2");
    while program.line().expect("it runs") != "stuck" {}
    let listener = Listener::new(&socket);
    let first = listener.accept();
    let message = control::receive_bare::<ClientMessage>(&first);
    assert!(matches!(message, Err(ControlError::Closed)), "{message:?}");
    until("the failure is written", || program.errors().contains("reached no poll point"));
    assert!(!is_attached_again(&program));
    assert!(program.line().is_some(), "the other kthread goes on");
    program.close_input();
    listener.attach(&program);
}
