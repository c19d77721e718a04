//! Dispatchers on one kthread: what runs before what, and what becomes of requests that block,
//! panic or are too many.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tailwater::dispatch::{Dispatcher, Request, RequestClass, Service, Settings, UdpServer};
use tailwater::net::UdpSocket;
use tailwater::sync::{Mutex, mpsc};
use tailwater::thread;
use tailwater_testkit::{PATIENCE, own_process};

type Job = Box<dyn FnOnce() + Send>;

#[test]
fn dispatchers_on_one_kthread() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(1)
            // A turn in which Linux does not run the kthread is not cut short.
            .stall_timeout(Duration::ZERO)
            .run(|| {
                for policy in ["sq:5us", "sq:20us,head", "mq:5us", "mq:5us,tail", "ps:10us", "srpt"] {
                    a_short_request_overtakes_a_long_one(policy);
                }
                a_long_request_gets_on_beside_short_ones();
                without_preemption_requests_run_in_order();
                a_lane_runs_a_resumed_request_at_once();
                a_request_that_blocks_lets_others_run();
                a_request_that_yields_or_blocks_is_preempted_later();
                a_panic_ends_one_request();
                no_dispatcher_has_the_only_kthread();
                a_full_queue_refuses();
                no_more_requests_are_preempted_than_allowed();
                no_more_requests_leave_their_lanes_than_allowed();
                a_request_that_keeps_its_lane_does_not_hold_up_what_it_waits_for();
                a_quantum_ends_after_poll_points_without_preemption();
                threads_that_are_needed_no_more_end();
                a_panic_that_panics_again_ends_one_request();
                a_lane_whose_initialisation_panics_serves();
                a_service_answers_by_datagram();
                a_classifier_that_panics_or_a_reply_too_long_costs_one_request();
                long_datagrams_leave_room_for_short_ones();
            })
            .unwrap();
    });
}

fn dispatcher(settings: Settings) -> Dispatcher<Job> {
    Dispatcher::start(settings, |_| (), |job: Job| job()).unwrap()
}

fn policy(text: &str) -> Settings {
    Settings::new(text.parse().unwrap())
        .class(RequestClass::new("short").slo(Duration::from_micros(50)))
        .class(RequestClass::new("long").slo(Duration::from_millis(50)))
}

fn submit(dispatcher: &Dispatcher<Job>, class: usize, job: impl FnOnce() + Send + 'static) {
    let work = Duration::from_micros(if class == 0 { 1 } else { 1_000_000 });
    dispatcher.submit(Request::new(class).work(work), Box::new(job)).unwrap();
}

/// Waits with poll points, as a request that computes.
fn compute_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "a request did not get its turn");
        tailwater::poll();
    }
}

/// Waits as any thread.
fn wait_until(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "a request did not end");
        thread::yield_now();
    }
}

fn a_short_request_overtakes_a_long_one(text: &str) {
    let dispatcher = dispatcher(policy(text));
    // Poll points of other threads change nothing.
    for _ in 0..10_000 {
        tailwater::poll();
    }
    let (short, long) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (seen, ended) = (Arc::clone(&short), Arc::clone(&long));
    submit(&dispatcher, 1, move || {
        compute_until(|| seen.load(Relaxed));
        ended.store(true, Relaxed);
    });
    // The long one has begun, so that the short one has to interrupt it.
    wait_until(|| dispatcher.stats()[1].queue_delay.count() == 1);
    submit(&dispatcher, 0, move || short.store(true, Relaxed));
    wait_until(|| long.load(Relaxed));
    wait_until(|| dispatcher.stats()[1].finished == 1);
    let stats = dispatcher.stats();
    assert!(stats[1].preemptions >= 1, "{text}: {stats:?}");
    assert_eq!((stats[0].finished, stats[0].preemptions), (1, 0), "{text}");
}

fn a_long_request_gets_on_beside_short_ones() {
    let dispatcher = dispatcher(policy("mq:5us"));
    let (done, shorts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (ended, seen) = (Arc::clone(&done), Arc::clone(&shorts));
    submit(&dispatcher, 1, move || {
        // It is interrupted many times before it ends.
        compute_until(|| seen.load(Relaxed) >= 100);
        ended.store(true, Relaxed);
    });
    let mut submitted = 0;
    wait_until(|| {
        // At any time a short one waits or runs.
        if shorts.load(Relaxed) == submitted {
            submitted += 1;
            let shorts = Arc::clone(&shorts);
            submit(&dispatcher, 0, move || {
                shorts.fetch_add(1, Relaxed);
            });
        }
        done.load(Relaxed)
    });
    wait_until(|| dispatcher.stats()[0].finished == u64::from(submitted));
}

fn without_preemption_requests_run_in_order() {
    for text in ["c-fcfs", "steal"] {
        let dispatcher = dispatcher(policy(text));
        let (done, order) = mpsc::channel();
        for number in 0..5 {
            let done = done.clone();
            submit(&dispatcher, number % 2, move || {
                for _ in 0..20_000 {
                    tailwater::poll();
                }
                done.send(number).unwrap();
            });
        }
        assert_eq!(order.iter().take(5).collect::<Vec<_>>(), [0, 1, 2, 3, 4], "{text}");
        assert!(dispatcher.stats().iter().all(|class| class.preemptions == 0), "{text}");
    }
}

/// The lane waits for its turn among the other threads, and lets them go first twice more before it
/// asks. It does not wait for a further turn when the policy names a suspended request.
fn a_lane_runs_a_resumed_request_at_once() {
    const OTHERS: u64 = 8;
    const SWITCHES: usize = 101;
    let (turns, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let others: Vec<_> = (0..OTHERS)
        .map(|_| {
            let (turns, stop) = (Arc::clone(&turns), Arc::clone(&stop));
            thread::spawn(move || {
                while !stop.load(Relaxed) {
                    turns.fetch_add(1, Relaxed);
                    thread::yield_now();
                }
            })
        })
        .collect();
    let dispatcher = dispatcher(policy("sq:20us"));
    // Turns of the others at the end of each run of a request, and before the next one's.
    let (between, runs) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU64::new(0)));
    let last = Arc::new(AtomicU64::new(0));
    for number in 1..=2 {
        let (turns, between) = (Arc::clone(&turns), Arc::clone(&between));
        let (runs, last) = (Arc::clone(&runs), Arc::clone(&last));
        submit(&dispatcher, 1, move || {
            compute_until(|| {
                let (ended, now) = (last.swap(turns.load(Relaxed), Relaxed), turns.load(Relaxed));
                if runs.swap(number, Relaxed) == 3 - number {
                    between.lock().unwrap().push(now - ended);
                }
                between.lock().unwrap().len() >= SWITCHES
            });
        });
    }
    wait_until(|| dispatcher.stats()[1].finished == 2);
    stop.store(true, Relaxed);
    others.into_iter().for_each(|other| other.join().unwrap());
    let mut between = between.lock().unwrap();
    between.sort_unstable();
    let median = between[between.len() / 2];
    assert!(median < 4 * OTHERS, "{median} turns of {OTHERS} threads: {between:?}");
}

fn a_request_that_blocks_lets_others_run() {
    let dispatcher = dispatcher(policy("c-fcfs"));
    let (send, receive) = mpsc::channel();
    let (done, answer) = mpsc::channel();
    submit(&dispatcher, 1, move || done.send(receive.recv().unwrap()).unwrap());
    submit(&dispatcher, 0, move || send.send(42).unwrap());
    assert_eq!(answer.recv(), Ok(42));
    wait_until(|| dispatcher.stats().iter().map(|class| class.finished).sum::<u64>() == 2);
}

fn a_request_that_yields_or_blocks_is_preempted_later() {
    let dispatcher = dispatcher(policy("sq:5us"));
    let short = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&short);
    submit(&dispatcher, 1, move || {
        thread::yield_now();
        tailwater::time::sleep(Duration::from_micros(50));
        compute_until(|| seen.load(Relaxed));
    });
    tailwater::time::sleep(Duration::from_millis(1));
    submit(&dispatcher, 0, move || short.store(true, Relaxed));
    wait_until(|| dispatcher.stats()[1].finished == 1);
}

fn a_panic_ends_one_request() {
    let dispatcher = dispatcher(policy("sq:5us"));
    submit(&dispatcher, 0, || panic!("expected by this test"));
    submit(&dispatcher, 0, || ());
    wait_until(|| dispatcher.stats()[0].finished == 2);
    assert_eq!(dispatcher.stats()[0].panicked, 1);
}

fn no_dispatcher_has_the_only_kthread() {
    for settings in [policy("jbsq:2"), policy("mq:5us").dispatchers(1)] {
        let message = Dispatcher::start(settings, |_| (), |(): ()| ()).unwrap_err().to_string();
        assert!(message.contains("--kthreads 2"), "{message}");
    }
}

fn a_full_queue_refuses() {
    let dispatcher = dispatcher(policy("c-fcfs").queue(2));
    let release = Arc::new(AtomicBool::new(false));
    let released = Arc::clone(&release);
    submit(&dispatcher, 0, move || wait_until(|| released.load(Relaxed)));
    submit(&dispatcher, 0, || ());
    // Neither has begun: the lane's thread has not run since.
    assert!(dispatcher.submit(Request::new(0), Box::new(|| ())).is_err());
    release.store(true, Relaxed);
    wait_until(|| dispatcher.stats()[0].finished == 2);
    let stats = &dispatcher.stats()[0];
    assert_eq!((stats.accepted, stats.dropped), (2, 1));
}

fn no_more_requests_are_preempted_than_allowed() {
    let dispatcher = dispatcher(policy("sq:5us").preempted(4));
    let (done, order) = mpsc::channel();
    let release = Arc::new(AtomicBool::new(false));
    for number in 0..3 {
        let (done, released) = (done.clone(), Arc::clone(&release));
        submit(&dispatcher, 1, move || {
            compute_until(|| released.load(Relaxed));
            done.send(number).unwrap();
        });
    }
    // Half of the places are those of this class: two give way to each other, and no third begins.
    wait_until(|| dispatcher.stats()[1].queue_delay.count() == 2);
    for _ in 0..100 {
        thread::yield_now();
    }
    assert_eq!(dispatcher.stats()[1].queue_delay.count(), 2);
    // They give way to other classes as before.
    let (short, answer) = mpsc::channel();
    submit(&dispatcher, 0, move || short.send(()).unwrap());
    answer.recv_timeout(PATIENCE).expect("a long request gives way");
    assert_eq!(dispatcher.stats()[1].queue_delay.count(), 2);
    release.store(true, Relaxed);
    assert_eq!(order.iter().take(3).count(), 3);
}

fn no_more_requests_leave_their_lanes_than_allowed() {
    let dispatcher = dispatcher(policy("c-fcfs").blocked(1));
    let mut release = Vec::new();
    for _ in 0..3 {
        let (send, receive) = mpsc::channel();
        release.push(send);
        submit(&dispatcher, 0, move || receive.recv().unwrap());
    }
    // The first leaves its lane to the second, which keeps it.
    wait_until(|| dispatcher.stats()[0].held == 1);
    for _ in 0..100 {
        thread::yield_now();
    }
    assert_eq!(dispatcher.stats()[0].queue_delay.count(), 2);
    release[1].send(()).unwrap();
    wait_until(|| dispatcher.stats()[0].queue_delay.count() == 3);
    // The third keeps the lane too: the first has not ended.
    wait_until(|| dispatcher.stats()[0].held == 2);
    release[0].send(()).unwrap();
    release[2].send(()).unwrap();
    wait_until(|| dispatcher.stats()[0].finished == 3);
}

fn a_request_that_keeps_its_lane_does_not_hold_up_what_it_waits_for() {
    for text in ["sq:5us", "ps:10us", "srpt", "mq:5us"] {
        let dispatcher = dispatcher(policy(text).blocked(0));
        let (mutex, waits) = (Arc::new(Mutex::new(0)), Arc::new(AtomicBool::new(false)));
        let (locked, seen) = (Arc::clone(&mutex), Arc::clone(&waits));
        submit(&dispatcher, 1, move || {
            let mut count = locked.lock().unwrap();
            compute_until(|| seen.load(Relaxed));
            *count += 1;
        });
        wait_until(|| dispatcher.stats()[1].queue_delay.count() == 1);
        // Overtakes the other, and waits for its lock on the only lane.
        let locked = Arc::clone(&mutex);
        submit(&dispatcher, 0, move || {
            waits.store(true, Relaxed);
            *locked.lock().unwrap() += 1;
        });
        wait_until(|| *mutex.lock().unwrap() == 2);
        // What ended while the policy had it as waiting is not run again.
        submit(&dispatcher, 1, move || *mutex.lock().unwrap() += 1);
        wait_until(|| dispatcher.stats()[1].finished == 2);
        let stats = dispatcher.stats();
        assert_eq!((stats[0].finished, stats[0].held), (1, 1), "{text}");
    }
}

fn a_quantum_ends_after_poll_points_without_preemption() {
    let dispatcher = dispatcher(policy("sq:5us"));
    let short = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&short);
    submit(&dispatcher, 1, move || {
        compute_until(|| {
            tailwater::no_preempt(|| (0..1_000).for_each(|_| tailwater::poll()));
            seen.load(Relaxed)
        });
    });
    wait_until(|| dispatcher.stats()[1].queue_delay.count() == 1);
    submit(&dispatcher, 0, move || short.store(true, Relaxed));
    wait_until(|| dispatcher.stats()[1].finished == 1);
}

/// Threads that have run a request of `threads_that_are_needed_no_more_end`, and have not ended.
static LIVE: AtomicU32 = AtomicU32::new(0);

struct Alive;

impl Drop for Alive {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Relaxed);
    }
}

thread_local! {
    static ALIVE: Alive = {
        LIVE.fetch_add(1, Relaxed);
        Alive
    };
}

fn threads_that_are_needed_no_more_end() {
    const REQUESTS: u32 = 200;
    let dispatcher = dispatcher(policy("c-fcfs"));
    let mut release = Vec::new();
    for _ in 0..REQUESTS {
        let (send, receive) = mpsc::channel();
        release.push(send);
        submit(&dispatcher, 0, move || {
            ALIVE.with(|_| ());
            receive.recv().unwrap();
        });
    }
    wait_until(|| LIVE.load(Relaxed) == REQUESTS);
    release.into_iter().for_each(|release| release.send(()).unwrap());
    wait_until(|| dispatcher.stats()[0].finished == u64::from(REQUESTS));
    // One for the lane, and 64.
    wait_until(|| LIVE.load(Relaxed) <= 65);
    // Those that are left serve, and those that ended have left nothing behind that is in the way.
    for _ in 0..REQUESTS {
        submit(&dispatcher, 0, thread::yield_now);
    }
    wait_until(|| dispatcher.stats()[0].finished == u64::from(2 * REQUESTS));
}

struct PanicsWhenDropped(u32);

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        if self.0 > 0 {
            std::panic::panic_any(Self(self.0 - 1));
        }
    }
}

fn a_panic_that_panics_again_ends_one_request() {
    let dispatcher = dispatcher(policy("sq:5us"));
    submit(&dispatcher, 0, || std::panic::panic_any(PanicsWhenDropped(2)));
    submit(&dispatcher, 0, || ());
    wait_until(|| dispatcher.stats()[0].finished == 2);
    assert_eq!(dispatcher.stats()[0].panicked, 1);
}

fn a_lane_whose_initialisation_panics_serves() {
    let init = |_| panic!("expected by this test");
    let dispatcher = Dispatcher::start(policy("c-fcfs"), init, |job: Job| job()).unwrap();
    submit(&dispatcher, 0, || ());
    wait_until(|| dispatcher.stats()[0].finished == 1);
}

struct Echo(Arc<AtomicU32>);

impl Service for Echo {
    fn init_per_core(&self, core: usize) {
        assert_eq!(core, 0);
        self.0.fetch_add(1, Relaxed);
    }

    fn classify(&self, request: &[u8]) -> usize {
        usize::from(request.first().is_some_and(u8::is_ascii_uppercase))
    }

    fn handle(&self, request: &[u8], reply: &mut Vec<u8>) {
        reply.extend(request.iter().rev());
    }
}

fn a_service_answers_by_datagram() {
    let initialised = Arc::new(AtomicU32::new(0));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let server = UdpServer::start(socket, Echo(Arc::clone(&initialised)), policy("mq:5us")).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.connect(server.local_addr().unwrap()).unwrap();
    let mut reply = [0; 10];
    for (request, answer) in [("abc", "cba"), ("ABC", "CBA"), ("x", "x")] {
        client.send(request.as_bytes()).unwrap();
        let len = client.recv(&mut reply).unwrap();
        assert_eq!(&reply[..len], answer.as_bytes());
    }
    // No answer is sent to an empty one; the next is answered.
    client.send(b"").unwrap();
    client.send(b"end").unwrap();
    assert_eq!(client.recv(&mut reply).unwrap(), 3);
    wait_until(|| server.stats()[0].finished == 4);
    let accepted: Vec<u64> = server.stats().iter().map(|class| class.accepted).collect();
    assert_eq!(accepted, [4, 1]);
    assert_eq!(initialised.load(Relaxed), 1);
}

struct Careless;

impl Service for Careless {
    fn classify(&self, request: &[u8]) -> usize {
        usize::from(request[0] == b'l')
    }

    fn work(&self, request: &[u8]) -> Option<Duration> {
        Some(Duration::from_micros(request[1].into()))
    }

    fn handle(&self, request: &[u8], reply: &mut Vec<u8>) {
        reply.extend_from_slice(request);
        if request == b"huge" {
            reply.resize(100_000, 0);
        }
    }
}

fn a_classifier_that_panics_or_a_reply_too_long_costs_one_request() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // A server waits for requests all the same.
    socket.set_nonblocking(true).unwrap();
    let server = UdpServer::start(socket, Careless, policy("srpt")).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.connect(server.local_addr().unwrap()).unwrap();
    let mut reply = [0; 10];
    for _ in 0..3 {
        // The first has no class, the second no work.
        for request in ["", "l", "long"] {
            client.send(request.as_bytes()).unwrap();
        }
        let len = client.recv(&mut reply).unwrap();
        assert_eq!(&reply[..len], b"long");
    }
    assert_eq!(server.unclassified(), 6);
    let stats = server.stats();
    assert_eq!((stats[0].accepted, stats[1].accepted), (0, 3));
    assert_eq!(server.unsent(), 0);
    client.send(b"huge").unwrap();
    wait_until(|| server.unsent() == 1);
}

/// Long requests, in capitals, end once it is open.
struct Gate(Arc<AtomicBool>);

impl Service for Gate {
    fn classify(&self, request: &[u8]) -> usize {
        usize::from(request[0].is_ascii_uppercase())
    }

    fn handle(&self, request: &[u8], _: &mut Vec<u8>) {
        while request[0].is_ascii_uppercase() && !self.0.load(Relaxed) {
            thread::yield_now();
        }
    }
}

fn long_datagrams_leave_room_for_short_ones() {
    let open = Arc::new(AtomicBool::new(false));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // The first keeps its lane while it lets others run.
    let settings = policy("c-fcfs").queue(4).blocked(0);
    let server = UdpServer::start(socket, Gate(Arc::clone(&open)), settings).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(server.local_addr().unwrap()).unwrap();
    let arrived = |class: usize| {
        let stats = &server.stats()[class];
        (stats.accepted, stats.dropped)
    };
    for sent in 1..=8 {
        client.send(b"LONG").unwrap();
        wait_until(|| arrived(1).0 + arrived(1).1 == sent);
    }
    // Half of the queue waits, and one runs or has to begin.
    assert!((2..=3).contains(&arrived(1).0), "{:?}", arrived(1));
    client.send(b"short").unwrap();
    wait_until(|| arrived(0) != (0, 0));
    assert_eq!(arrived(0), (1, 0));
    open.store(true, Relaxed);
    wait_until(|| server.stats()[0].finished == 1);
}
