//! Programs under test. `role NAME` runs one; all print `ready ADDRESS` when they serve.

mod absent;
mod alone;
mod bustle;
mod crunch;
mod dns;
mod gather;
mod kv;
mod leave;
mod replace;
mod steady;
mod tcp;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tailwater::cores::{self, Estimation, Priorities};
use tailwater::dispatch::{RequestClass, Service, Settings, UdpServer};
use tailwater::internals::SpinLock;
use tailwater::net::UdpSocket;
use tailwater::signal::{SIGHUP, SIGTERM, Signals};
use tailwater::thread;

fn ready() {
    say(&format!("ready {}", own_ip()));
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("the test reads our output");
}

/// Returns this runtime's own address.
fn own_ip() -> Ipv4Addr {
    tailwater::net::local_ip()
}

/// Echoes every datagram on port 7, over either family, after this much work.
fn echo(work: Duration) {
    let socket = UdpSocket::bind("[::]:7").expect("port 7 is free");
    ready();
    let mut buffer = vec![0; 65_536];
    loop {
        let (len, from) = socket.recv_from(&mut buffer).expect("receive");
        let began = Instant::now();
        while began.elapsed() < work {
            std::hint::spin_loop();
        }
        socket.send_to(&buffer[..len], from).expect("send");
    }
}

/// The same by a dispatcher, with a class for each parity of the first byte.
fn dispatch() {
    struct Echo;

    impl Service for Echo {
        fn classify(&self, request: &[u8]) -> usize {
            usize::from(request[0] % 2)
        }

        fn handle(&self, request: &[u8], reply: &mut Vec<u8>) {
            reply.extend_from_slice(request);
        }
    }

    let socket = UdpSocket::bind("[::]:7").expect("port 7 is free");
    let settings = Settings::new("sq:5us".parse().expect("a policy"))
        .class(RequestClass::new("even"))
        .class(RequestClass::new("odd").slo(Duration::from_micros(50)));
    let _server = UdpServer::start(socket, Echo, settings).expect("it starts");
    ready();
    loop {
        thread::park();
    }
}

/// Sends requests to the echo service of another machine until it has answered `count` times;
/// prints `answered COUNT` and the number of requests.
fn ask(service: &str, count: u64) {
    let socket = UdpSocket::bind((own_ip(), 9)).expect("port 9 is free");
    socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    ready();
    let service: Ipv4Addr = service.parse().expect("an address");
    let (mut buffer, mut asked) = ([0; 2048], 0u64);
    for number in 0..count {
        // Of many lengths, so that a frame cut or padded on the path is noticed.
        let request: Vec<u8> =
            number.to_be_bytes().into_iter().cycle().take(8 + number as usize * 31 % 1400).collect();
        loop {
            asked += 1;
            socket.send_to(&request, (service, 7)).expect("send");
            // Earlier answers may arrive late.
            let answered = std::iter::from_fn(|| socket.recv_from(&mut buffer).ok())
                .take(8)
                .find(|(_, from)| from.ip() == service)
                .is_some_and(|(len, _)| buffer[..len] == request);
            if answered {
                break;
            }
        }
    }
    say(&format!("answered {count} asked {asked}"));
}

/// Sends datagrams to the address in PEER until one comes back, and prints that.
fn call() {
    let peer = std::env::var("PEER").expect("a peer to call");
    let socket = UdpSocket::bind("[::]:0").expect("a free port");
    socket.connect(&*peer).expect("a route");
    socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    ready();
    let data: Vec<u8> = (0..3000u32).map(|i| i as u8).collect();
    let mut buffer = vec![0; 65_536];
    loop {
        // The peer's address may still be tentative, or the neighbour unresolved.
        let answer = socket.send(&data).and_then(|_| socket.recv(&mut buffer));
        if answer.is_ok_and(|len| buffer[..len] == data) {
            say("answered");
            return;
        }
    }
}

/// Computes for some hundred nanoseconds.
fn compute(mut x: u64) -> u64 {
    for _ in 0..200 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    }
    std::hint::black_box(x)
}

/// Computes for ever, polling or not; prints its progress, and how often it gave up a core on
/// request, every 50 ms of its own time.
fn burn(poll: bool) {
    let _socket = UdpSocket::bind((own_ip(), 7)).expect("port 7 is free");
    ready();
    let mut x = 1u64;
    let mut said = Instant::now();
    let mut rounds = 0u64;
    loop {
        x = compute(x);
        rounds += 1;
        if poll {
            tailwater::poll();
        }
        if rounds.is_multiple_of(1024) && said.elapsed() > Duration::from_millis(50) {
            say(&format!("rounds {rounds} cedes {}", tailwater::debug::counters().cedes));
            said = Instant::now();
        }
    }
}

/// Waits for the loss of the IOKernel, and prints `met` once `kthreads` threads hold a kthread each
/// at the same time.
fn crowd(kthreads: usize) {
    static GATE: Mutex<()> = Mutex::new(());
    static HOLDING: AtomicUsize = AtomicUsize::new(1);
    let socket = UdpSocket::bind((own_ip(), 7)).expect("port 7 is free");
    ready();
    let is_down =
        || socket.send_to(b"up?", "10.77.200.1:9").is_err_and(|e| e.kind() == ErrorKind::NetworkDown);
    while !is_down() {
        thread::sleep(Duration::from_millis(1));
    }
    let spawn_all = move || {
        let _closed = GATE.lock();
        for holding in 2..=kthreads {
            thread::spawn(|| {
                HOLDING.fetch_add(1, Ordering::Relaxed);
                // Waits in the kernel: no other user thread runs on the kthread.
                drop(GATE.lock());
            });
            // One by one: none is queued behind a thread that holds its kthread.
            while HOLDING.load(Ordering::Relaxed) < holding {
                std::thread::yield_now();
            }
        }
    };
    // This thread waits in the kernel, too.
    std::thread::spawn(spawn_all).join().expect("it does not panic");
    say("met");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("standard input");
}

/// Keeps its kthread busy, and sends a datagram to the client station about every 20 ms.
fn beacon() {
    let socket = UdpSocket::bind((own_ip(), 7)).expect("port 7 is free");
    ready();
    let mut sent = Instant::now();
    loop {
        // Frames are handled between turns: the address of the station is asked for first.
        tailwater::thread::yield_now();
        if sent.elapsed() > Duration::from_millis(20) {
            sent = Instant::now();
            socket.send_to(b"beacon", "10.77.200.1:4000").expect("a datagram is taken");
        }
    }
}

/// Requests a core and gives it back, several times; prints what was granted and where it runs.
fn request() {
    ready();
    for cores in [1, 0, 1, 0] {
        cores::request(Priorities::default().with(3, cores));
        while cores::granted() != cores {
            thread::sleep(Duration::from_millis(1));
        }
        say(&format!(
            "granted {} of {} on {:?}",
            cores::granted(),
            cores::requested().total(),
            cores::held()
        ));
    }
    let change = cores::changes(Duration::from_millis(1)).next().expect("it never ends");
    say(&format!("gained {:?} lost {:?}", change.gained, change.lost));
}

/// Has the cores estimated that it needs, and prints what that comes to; then ends it.
fn estimate() {
    ready();
    match cores::estimate(Estimation::default().interval(Duration::from_millis(5)).priority(2).at_most(1)) {
        Err(why) => say(&format!("refused: {why}")),
        Ok(()) => {
            let idle = Priorities::default().with(2, 1);
            while cores::requested() != idle || cores::granted() != 1 {
                thread::sleep(Duration::from_millis(1));
            }
            say("requested 1");
            cores::request(Priorities::default().with(7, 1));
            say(&format!("requested {}", cores::requested().total()));
            cores::clear_policy();
            say(&format!("requested {}", cores::requested().total()));
        }
    }
}

/// Prints why no exclusive thread can be made.
fn exclusive() {
    ready();
    match thread::Builder::new().class(thread::ThreadClass::Exclusive).spawn(|| ()) {
        Err(why) => say(&format!("refused: {why}")),
        Ok(thread) => say(&format!("made: {:?}", thread.join())),
    }
}

/// Computes in the background all the time, and echoes every datagram on port 7.
fn compute_and_echo() {
    let compute = || {
        let mut n = 0u64;
        loop {
            n = std::hint::black_box(n.wrapping_add(1));
            tailwater::poll();
        }
    };
    drop(thread::Builder::new().class(thread::ThreadClass::Background).spawn(compute).expect("a thread"));
    echo(Duration::ZERO);
}

/// Waits for a background thread that computes for a fifth of a second; prints that it has ended.
fn join_background() {
    ready();
    let compute = || {
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(200) {
            tailwater::poll();
        }
    };
    let background = thread::Builder::new().class(thread::ThreadClass::Background).spawn(compute);
    background.expect("a thread").join().expect("it does not panic");
    say("joined");
}

/// Requests a core for as long as it runs; prints what is granted and held whenever that changes.
fn keep_request() {
    ready();
    cores::request(1);
    let mut known = None;
    loop {
        let now = (cores::requested().total(), cores::granted(), cores::held());
        if known.as_ref() != Some(&now) {
            say(&format!("requested {} granted {} held {:?}", now.0, now.1, now.2));
            known = Some(now);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

thread_local! {
    static MINE: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Runs user threads that never poll and check, while they are preempted and migrate, that their
/// thread-local data stay their own.
fn check_soundness() {
    static ROUNDS: AtomicU64 = AtomicU64::new(0);
    let _socket = UdpSocket::bind((own_ip(), 7)).expect("port 7 is free");
    ready();
    let threads: Vec<_> = (0..6u64)
        .map(|id| {
            thread::spawn(move || {
                let mut sum = 0.0f64;
                for round in 0.. {
                    MINE.with_borrow_mut(|mine| {
                        mine.push(id);
                        assert!(mine.iter().all(|&x| x == id), "thread-local of another thread");
                        if mine.len() > 1000 {
                            mine.clear();
                        }
                    });
                    let map: HashMap<u64, String> = (0..20).map(|k| (k, format!("{id}-{k}"))).collect();
                    assert!(map.iter().all(|(k, v)| *v == format!("{id}-{k}")), "map damaged");
                    for i in 1..200 {
                        sum += (f64::from(i) * id as f64).sqrt();
                    }
                    let caught = std::panic::catch_unwind(|| std::panic::resume_unwind(Box::new(id)));
                    assert_eq!(*caught.unwrap_err().downcast::<u64>().expect("our payload"), id);
                    if round % 64 == 0 {
                        ROUNDS.fetch_add(64, Ordering::Relaxed);
                    }
                    if round % 1000 == 999 {
                        thread::yield_now();
                    }
                }
                std::hint::black_box(sum);
            })
        })
        .collect();
    thread::spawn(|| {
        loop {
            thread::sleep(Duration::from_millis(50));
            say(&format!("rounds {}", ROUNDS.load(Ordering::Relaxed)));
        }
    });
    for thread in threads {
        if let Err(panic) = thread.join() {
            say(&format!("failed {:?}", panic.downcast_ref::<String>()));
            std::process::exit(1);
        }
    }
}

/// Keeps all kthreads busy beside threads that sleep, and prints how often the one that has woken
/// the fewest times has, every 50 ms.
fn sleepers() {
    let wakes: &[AtomicU64; 24] = Box::leak(Box::new(core::array::from_fn(|_| AtomicU64::new(0))));
    for wakes in wakes {
        thread::spawn(|| {
            loop {
                thread::sleep(Duration::from_millis(5));
                wakes.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    for _ in 0..6 {
        thread::spawn(|| {
            loop {
                thread::yield_now();
            }
        });
    }
    ready();
    loop {
        thread::sleep(Duration::from_millis(50));
        let least = wakes.iter().map(|wakes| wakes.load(Ordering::Relaxed)).min();
        say(&format!("rounds {}", least.expect("there are some")));
    }
}

/// Spins without a poll point.
#[inline(never)]
fn spins_here(number: u64) {
    let mut x = number;
    // Always true, which is opaque to the compiler.
    while std::hint::black_box(x) < u64::MAX {
        x = std::hint::black_box(number);
    }
}

/// Runs three threads that spin for ever.
fn spin() {
    let _socket = UdpSocket::bind((own_ip(), 7)).expect("port 7 is free");
    let threads: Vec<_> = (0..3)
        .map(|number| {
            let name = format!("spinner-{number}");
            thread::Builder::new().name(name).spawn(move || spins_here(number)).expect("memory for a stack")
        })
        .collect();
    ready();
    threads.into_iter().for_each(|thread| thread.join().expect("it never ends"));
}

/// Sleeps in a system call on a lent core until its input ends.
#[inline(never)]
fn sleeps_here() {
    let _socket = UdpSocket::bind((own_ip(), 7)).expect("port 7 is free");
    ready();
    std::io::stdin().read_to_end(&mut Vec::new()).expect("standard input");
}

/// Keeps preemption off repeatedly, for longer than the IOKernel lets a thread run on beside the
/// next owner of its core even if it shares the core with that one, but never for a long time.
fn clutch() {
    let _socket = UdpSocket::bind((own_ip(), 7)).expect("port 7 is free");
    ready();
    let (lock, mut rounds) = (SpinLock::new(()), 0);
    let mut said = Instant::now();
    loop {
        let guard = lock.lock();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(10) {
            std::hint::spin_loop();
        }
        drop(guard);
        tailwater::poll();
        rounds += 1;
        if said.elapsed() > Duration::from_millis(50) {
            say(&format!("rounds {rounds}"));
            said = Instant::now();
        }
    }
}

/// Keeps preemption off on one kthread until its input ends, and prints `stuck` before; prints the
/// progress of another.
fn stuck() {
    static FREE: AtomicBool = AtomicBool::new(false);
    ready();
    thread::spawn(|| {
        for rounds in 0u64.. {
            say(&format!("rounds {rounds}"));
            thread::sleep(Duration::from_millis(20));
        }
    });
    std::thread::spawn(|| {
        std::io::stdin().read_to_end(&mut Vec::new()).expect("standard input");
        FREE.store(true, Ordering::Relaxed);
    });
    let lock = SpinLock::new(());
    let guard = lock.lock();
    // Nothing that is printed gives up the kthread.
    say("stuck");
    while !FREE.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
    drop(guard);
    loop {
        thread::sleep(Duration::from_secs(1));
    }
}

/// Sends datagrams to itself and counts those that arrive, until its input ends.
fn talk_to_self() {
    let socket = UdpSocket::bind((own_ip(), 7)).expect("port 7 is free");
    ready();
    let mut buffer = [0; 64];
    for i in 0..10_000u32 {
        socket.send_to(&i.to_be_bytes(), (own_ip(), 7)).expect("send");
        let (len, _) = socket.recv_from(&mut buffer).expect("receive");
        assert_eq!(buffer[..len], i.to_be_bytes());
    }
    say("done");
}

/// Takes turns with a thread that polls and never waits, on one kthread; prints how many turns
/// ended at a poll point.
fn turns() {
    static ENDED: AtomicBool = AtomicBool::new(false);
    let _socket = UdpSocket::bind((own_ip(), 7)).expect("port 7 is free");
    ready();
    let other = thread::spawn(|| {
        while !ENDED.load(Ordering::Relaxed) {
            tailwater::poll();
        }
    });
    for _ in 0..500 {
        thread::yield_now();
    }
    ENDED.store(true, Ordering::Relaxed);
    other.join().expect("it does not panic");
    say(&format!("yields {}", tailwater::debug::counters().yields));
}

/// Polls until its input ends, then some times more; prints how many threads were resumed in these.
fn polls() {
    static ENDED: AtomicBool = AtomicBool::new(false);
    const POLLS: u64 = 100_000;
    ready();
    std::thread::spawn(|| {
        std::io::stdin().read_to_end(&mut Vec::new()).expect("standard input");
        ENDED.store(true, Ordering::Relaxed);
    });
    while !ENDED.load(Ordering::Relaxed) {
        tailwater::poll();
    }
    let before = tailwater::debug::counters().switches;
    (0..POLLS).for_each(|_| tailwater::poll());
    say(&format!("switches {} polls {POLLS}", tailwater::debug::counters().switches - before));
}

/// Waits for SIGTERM on a user thread, past any SIGHUP. Ends by it after 0.3 s without a core.
fn await_signal() {
    tailwater::internals::set_looks_before_end(3);
    let mut signals = Signals::new([SIGTERM, SIGHUP]).expect("a descriptor");
    ready();
    while signals.wait() == SIGHUP {}
}

/// Computes without a poll point for a second after SIGTERM, where 0.3 s without a core would end
/// it; then reads the signal.
fn compute_after_signal() {
    tailwater::internals::set_looks_before_end(3);
    let mut signals = Signals::new([SIGTERM]).expect("a descriptor");
    // It waits for the core meanwhile.
    let reader = thread::spawn(move || signals.wait());
    ready();
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).expect("its own");
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        std::hint::spin_loop();
    }
    assert_eq!(reader.join().expect("it does not panic"), SIGTERM);
    say("read");
}

/// Returns the number after the role's name.
fn number<N: FromStr>() -> N {
    word(2).expect("a number")
}

/// Returns the word at this place of the command line, if it is there and has this form.
fn word<N: FromStr>(place: usize) -> Option<N> {
    std::env::args().nth(place)?.parse().ok()
}

#[tailwater::main]
fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("echo") => echo(Duration::ZERO),
        Some("await-signal") => await_signal(),
        Some("compute-after-signal") => compute_after_signal(),
        Some("work") => echo(Duration::from_micros(100)),
        Some("dispatch") => dispatch(),
        Some("call") => call(),
        Some("burn") => burn(true),
        Some("beacon") => beacon(),
        Some("crowd") => crowd(number()),
        Some("crunch") => crunch::run(number(), word(3).zip(word(4))),
        Some("bustle") => bustle::run(),
        Some("gather") => gather::run(number()),
        Some("hog") => burn(false),
        Some("soundness") => check_soundness(),
        Some("sleepers") => sleepers(),
        Some("self") => talk_to_self(),
        Some("ask") => {
            let words: Vec<String> = std::env::args().skip(2).collect();
            ask(&words[0], words[1].parse().expect("a number"));
        }
        Some("request") => request(),
        Some("estimate") => estimate(),
        Some("exclusive") => exclusive(),
        Some("alone") => alone::run(),
        Some("background") => compute_and_echo(),
        Some("join-background") => join_background(),
        Some("keep-request") => keep_request(),
        Some("spin") => spin(),
        Some("sleep") => sleeps_here(),
        Some("clutch") => clutch(),
        Some("stuck") => stuck(),
        Some("turns") => turns(),
        Some("polls") => polls(),
        Some("dns") => dns::serve(),
        Some("kv") => kv::serve(),
        Some("tcp-serve") => tcp::serve(),
        Some("tcp-call") => tcp::call(),
        Some("tcp-relay") => tcp::relay(),
        Some("tcp-keep") => tcp::keep(),
        Some("tcp-orphan") => tcp::orphan(),
        Some("tcp-late") => tcp::late(),
        Some("absent-serve") => absent::serve(),
        Some("absent-watch") => absent::watch(),
        Some("leave-return") => leave::serve(leave::Way::Return),
        Some("leave-exit") => leave::serve(leave::Way::Exit),
        Some("leave-panic") => leave::serve(leave::Way::Panic),
        Some("leave-open") => leave::keep_open(),
        Some("leave-watch") => leave::watch(),
        Some("part") => leave::part(),
        Some("replace-serve") => replace::serve(number()),
        Some("replace-call") => replace::call(),
        Some("steady") => steady::call(number()),
        other => panic!("unknown role {other:?}"),
    }
}
