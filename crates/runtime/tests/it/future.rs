//! Futures on user threads, through the public API, standalone. One runtime per process, so one
//! test function runs all.

use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use std::io::ErrorKind;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Wake;
use std::time::{Duration, Instant};
use tailwater::future::net::{TcpListener, TcpStream, UdpSocket};
use tailwater::future::{Elapsed, block_on, sleep, spawn, timeout, yield_now};
use tailwater::sync::{Event, Notify, channel};
use tailwater::thread;
use tailwater_testkit::own_process;

const AGES: Duration = Duration::from_secs(3600);

#[test]
fn futures_wait_and_are_woken() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(2)
            .run(|| {
                an_echo_service_answers_many_clients();
                two_tasks_share_a_stream();
                plain_and_buffered_reads_return_the_stream_in_order();
                a_refused_connection_is_an_error();
                a_dropped_connect_ends_the_handshake();
                an_accept_that_is_dropped_loses_no_connection();
                datagrams_reach_the_futures_that_wait();
                a_dropped_future_is_not_woken();
                a_dropped_read_leaves_no_waker_in_the_stream();
                a_wake_up_inside_a_poll_is_not_lost_to_a_park();
                an_inner_block_on_takes_no_wake_up_from_the_outer();
                an_inner_block_on_does_not_wake_the_outer();
                a_waker_of_another_executor_may_close_the_socket_that_calls_it();
                wakers_may_be_called_after_their_thread_has_ended();
                ordinary_threads_wake_user_threads_and_the_reverse();
                a_sleep_lasts_and_can_be_moved();
                a_timeout_drops_its_future();
                a_cancelled_task_drops_its_future();
                a_panic_of_a_task_reaches_who_awaits_it();
                a_task_whose_result_was_taken_is_finished();
                channels_carry_everything_in_order();
                a_send_waits_for_room_and_ends_with_its_receiver();
                a_rendezvous_of_two_futures_is_refused();
                all_that_wait_are_notified();
                each_notification_lets_one_of_the_futures_pass();
                an_event_lets_all_pass();
                futures_and_threads_share_a_socket();
                a_task_that_yields_lets_others_run();
            })
            .unwrap();
    });
}

/// A waker of another executor: counts.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    /// Lets other threads run until the waker was called.
    fn wait(&self) {
        while self.0.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
    }
}

/// Polls once with a waker of another executor.
fn poll_once<F: Future>(future: Pin<&mut F>, count: &Arc<Count>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::clone(count));
    future.poll(&mut Context::from_waker(&waker))
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    block_on(async {
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    })
}

async fn echo(mut stream: TcpStream) {
    let mut buf = [0; 512];
    loop {
        match stream.read(&mut buf).await.unwrap() {
            0 => return,
            len => stream.write_all(&buf[..len]).await.unwrap(),
        }
    }
}

fn an_echo_service_answers_many_clients() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            drop(spawn(echo(stream)));
        }
    });
    let clients = (0..50_u8).map(|client| {
        spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            for round in 0..20_u8 {
                let question = [client, round, 7];
                stream.write_all(&question).await.unwrap();
                let mut answer = [0; 3];
                let mut got = 0;
                while got < 3 {
                    got += stream.read(&mut answer[got..]).await.unwrap();
                }
                assert_eq!(answer, question);
            }
        })
    });
    clients.collect::<Vec<_>>().into_iter().for_each(|client| client.join().unwrap());
    server.cancel();
}

fn two_tasks_share_a_stream() {
    const BYTES: usize = 1 << 20;
    let (client, server) = pair();
    let (mut reader, mut writer) = client.into_split();
    let serving = spawn(async move {
        echo(server).await;
    });
    let writing = spawn(async move {
        for _ in 0..BYTES / 4096 {
            writer.write_all(&[9; 4096]).await.unwrap();
        }
        writer.shutdown().unwrap();
    });
    let received = block_on(async move {
        let (mut buf, mut received) = ([0; 4096], 0);
        loop {
            match reader.read(&mut buf).await.unwrap() {
                0 => break received,
                len => received += len,
            }
        }
    });
    writing.join().unwrap();
    serving.join().unwrap();
    assert_eq!(received, BYTES);
}

fn plain_and_buffered_reads_return_the_stream_in_order() {
    const BYTES: usize = 400_000;
    let pattern = |at: usize| (at * 31 + at / 251) as u8;
    let mut random = 7_u32;
    let mut below = move |limit: usize| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) as usize % limit
    };
    let (mut client, mut server) = pair();
    let writer = spawn(async move {
        let data: Vec<u8> = (0..BYTES).map(pattern).collect();
        for piece in data.chunks(3_001) {
            client.write_all(piece).await.unwrap();
        }
        client
    });
    block_on(async {
        let (mut at, mut buf) = (0, [0; 5_000]);
        while at < BYTES {
            let len = match below(8) {
                0..3 => {
                    let len = server.read(&mut buf[..1 + below(5_000)]).await.unwrap();
                    assert!(buf[..len].iter().zip(at..).all(|(&byte, at)| byte == pattern(at)));
                    len
                }
                // What is on loan goes back to the connection.
                3 => {
                    server.fill_buf().await.unwrap();
                    server = TcpStream::from(server.into_inner());
                    0
                }
                _ => {
                    let data = server.fill_buf().await.unwrap();
                    assert!(data.iter().zip(at..).all(|(&byte, at)| byte == pattern(at)));
                    let len = below(data.len() + 1);
                    server.consume(len);
                    len
                }
            };
            at += len;
        }
        drop(writer.await.unwrap());
        assert_eq!(server.fill_buf().await.unwrap(), b"", "the end of the stream");
        assert_eq!(server.read(&mut buf).await.unwrap(), 0);
    });
}

fn a_refused_connection_is_an_error() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = block_on(TcpStream::connect(address)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

fn a_dropped_connect_ends_the_handshake() {
    // A listener whose queue is full answers no SYN.
    let listener = tailwater::net::TcpOptions::new().backlog(1).listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let _first = tailwater::net::TcpStream::connect(address).unwrap();
    let late = block_on(timeout(Duration::from_millis(5), TcpStream::connect(address)));
    assert!(matches!(late, Err(Elapsed)));
    drop(listener);
}

fn an_accept_that_is_dropped_loses_no_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(Count::default());
    {
        let mut accept = pin!(listener.accept());
        assert!(poll_once(accept.as_mut(), &count).is_pending());
        let _client = block_on(TcpStream::connect(address)).unwrap();
        count.wait();
    }
    block_on(listener.accept()).unwrap();
}

fn datagrams_reach_the_futures_that_wait() {
    let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
    let address = socket.local_addr().unwrap();
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let socket = Arc::clone(&socket);
            spawn(async move {
                let mut buf = [0; 10];
                let (len, from) = socket.recv_from(&mut buf).await.unwrap();
                socket.send_to(&buf[..len], from).await.unwrap();
                buf[0]
            })
        })
        .collect();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    block_on(async {
        client.connect(address).unwrap();
        for number in 0..4 {
            client.send(&[number]).await.unwrap();
            assert_eq!(client.recv(&mut [0; 10]).await.unwrap(), 1);
        }
    });
    let mut all: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3]);
}

fn a_dropped_future_is_not_woken() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (gone, stays) = (Arc::new(Count::default()), Arc::new(Count::default()));
    let (mut one, mut other) = ([0; 10], [0; 10]);
    let mut staying = Box::pin(socket.recv_from(&mut other));
    assert!(poll_once(staying.as_mut(), &stays).is_pending());
    {
        let mut going = Box::pin(socket.recv_from(&mut one));
        assert!(poll_once(going.as_mut(), &gone).is_pending());
        assert!(poll_once(going.as_mut(), &gone).is_pending(), "armed anew");
    }
    assert_eq!(Arc::strong_count(&gone), 1, "its waker was dropped with it");
    socket.get_ref().send_to(b"x", socket.local_addr().unwrap()).unwrap();
    stays.wait();
    assert_eq!(gone.0.load(Ordering::SeqCst), 0);
    assert!(poll_once(staying.as_mut(), &stays).is_ready());
}

fn a_dropped_read_leaves_no_waker_in_the_stream() {
    let (mut client, mut server) = pair();
    let count = Arc::new(Count::default());
    let mut buf = [0; 10];
    {
        let mut read = Box::pin(server.read(&mut buf));
        assert!(poll_once(read.as_mut(), &count).is_pending());
        assert_eq!(Arc::strong_count(&count), 2, "its waker is in the stream");
    }
    assert_eq!(Arc::strong_count(&count), 1, "its waker was dropped with it");
    block_on(client.write_all(b"abc")).unwrap();
    assert_eq!(block_on(server.read(&mut buf)).unwrap(), 3);
    assert_eq!(count.0.load(Ordering::SeqCst), 0);
}

/// Runs a future that wakes itself and then calls `meanwhile` in its first poll, and is ready in
/// its second.
fn wakes_itself_before(meanwhile: fn()) {
    let mut polls = 0;
    block_on(poll_fn(|context| {
        polls += 1;
        if polls == 2 {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        meanwhile();
        Poll::Pending
    }));
}

fn a_wake_up_inside_a_poll_is_not_lost_to_a_park() {
    wakes_itself_before(thread::park);
}

fn an_inner_block_on_takes_no_wake_up_from_the_outer() {
    wakes_itself_before(|| block_on(yield_now()));
}

fn an_inner_block_on_does_not_wake_the_outer() {
    let is_woken = Arc::new(AtomicBool::new(false));
    let (mut polls, mut waking) = (0, None);
    block_on(poll_fn(|context| {
        block_on(async {});
        polls += 1;
        if is_woken.load(Ordering::SeqCst) {
            return Poll::Ready(());
        }
        waking.get_or_insert_with(|| {
            let (waker, is_woken) = (context.waker().clone(), Arc::clone(&is_woken));
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(5));
                is_woken.store(true, Ordering::SeqCst);
                waker.wake();
            })
        });
        Poll::Pending
    }));
    waking.expect("it waited").join().unwrap();
    // Two suffice; a thread that spins polls a hundred times in far less than 5 ms.
    assert!(polls <= 100, "{polls} polls");
}

/// A waker that drops a future when it is called.
struct Closes<F>(Mutex<Option<F>>, AtomicUsize);

impl<F: Send> Wake for Closes<F> {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
        self.1.store(1, Ordering::SeqCst);
    }
}

fn a_waker_of_another_executor_may_close_the_socket_that_calls_it() {
    let (mut client, server) = pair();
    let reading = Box::pin(async move {
        let mut server = server;
        server.read(&mut [0; 10]).await
    });
    let closes = Arc::new(Closes(Mutex::new(Some(reading)), AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&closes));
    {
        let mut reading = closes.0.lock().unwrap();
        let reading = reading.as_mut().unwrap().as_mut();
        assert!(reading.poll(&mut Context::from_waker(&waker)).is_pending());
    }
    block_on(client.write_all(b"x")).unwrap();
    while closes.1.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    // Closed with unread data: a reset.
    let end = block_on(client.read(&mut [0; 10]));
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

fn wakers_may_be_called_after_their_thread_has_ended() {
    let waker = thread::spawn(|| block_on(poll_fn(|context| Poll::Ready(context.waker().clone()))));
    let waker = waker.join().unwrap();
    // The next thread may have the same record: the waker's call must not harm it.
    let (sender, receiver) = channel::bounded(1);
    let next = thread::spawn(move || receiver.recv().unwrap());
    thread::yield_now();
    waker.wake_by_ref();
    let clone = waker.clone();
    clone.wake();
    sender.send(5).unwrap();
    assert_eq!(next.join().unwrap(), 5);
}

fn ordinary_threads_wake_user_threads_and_the_reverse() {
    let (to_user, on_user) = channel::bounded(1);
    let (to_os, on_os) = channel::bounded(1);
    let ordinary = std::thread::spawn(move || {
        block_on(async {
            sleep(Duration::from_millis(1)).await;
            for n in 0..100 {
                to_user.send_async(n).await.unwrap();
                assert_eq!(on_os.recv_async().await, Ok(n + 1));
            }
            assert_eq!(timeout(Duration::from_millis(1), sleep(AGES)).await, Err(Elapsed));
        });
    });
    block_on(async {
        while let Ok(n) = on_user.recv_async().await {
            to_os.send_async(n + 1).await.unwrap();
        }
    });
    tailwater::blocking(|| ordinary.join().unwrap());
}

fn a_sleep_lasts_and_can_be_moved() {
    let start = Instant::now();
    let mut nap = sleep(AGES);
    let count = Arc::new(Count::default());
    assert!(poll_once(Pin::new(&mut nap), &count).is_pending());
    assert!(poll_once(Pin::new(&mut nap), &count).is_pending());
    nap.reset(start + Duration::from_millis(2));
    let mut moved = Box::new(nap);
    assert!(poll_once(Pin::new(&mut *moved), &count).is_pending() || start.elapsed().as_millis() >= 2);
    block_on(moved);
    assert!(start.elapsed() >= Duration::from_millis(2));
    assert_eq!(Arc::strong_count(&count), 1, "its waker went with it");
    block_on(async {
        for micros in [0, 1, 50, 500] {
            let start = Instant::now();
            sleep(Duration::from_micros(micros)).await;
            assert!(start.elapsed() >= Duration::from_micros(micros));
        }
    });
}

fn a_timeout_drops_its_future() {
    let (sender, receiver) = channel::bounded::<()>(1);
    let late = block_on(timeout(Duration::from_millis(1), async move {
        sleep(AGES).await;
        drop(sender);
    }));
    assert_eq!(late, Err(Elapsed));
    assert!(receiver.recv().is_err());
    assert_eq!(block_on(timeout(AGES, async { 5 })), Ok(5));
}

fn a_cancelled_task_drops_its_future() {
    for yields in 0..20 {
        let (sender, receiver) = channel::bounded::<()>(1);
        let task = spawn(async move {
            sleep(AGES).await;
            drop(sender);
        });
        for _ in 0..yields {
            thread::yield_now();
        }
        task.cancel();
        assert!(receiver.recv().is_err());
    }
}

fn a_panic_of_a_task_reaches_who_awaits_it() {
    let failed = block_on(spawn(async {
        yield_now().await;
        panic!("on purpose");
    }));
    assert_eq!(*failed.unwrap_err().downcast::<&str>().unwrap(), "on purpose");
}

fn a_task_whose_result_was_taken_is_finished() {
    let mut task = spawn(async { 7 });
    assert_eq!(block_on(&mut task).unwrap(), 7);
    assert!(task.is_finished());
    let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| block_on(&mut task)));
    assert!(again.unwrap_err().downcast::<&str>().unwrap().contains("after it is ready"));
}

fn channels_carry_everything_in_order() {
    const MESSAGES: usize = 1000;
    let (sender, receiver) = channel::bounded(3);
    let sending = spawn(async move {
        for n in 0..MESSAGES {
            sender.send_async(n).await.unwrap();
        }
    });
    let all: Vec<_> = block_on(async {
        let mut all = Vec::new();
        while let Ok(n) = receiver.recv_async().await {
            all.push(n);
        }
        all
    });
    sending.join().unwrap();
    assert_eq!(all, (0..MESSAGES).collect::<Vec<_>>());
}

fn a_send_waits_for_room_and_ends_with_its_receiver() {
    let (sender, receiver) = channel::bounded(1);
    sender.send(1).unwrap();
    let count = Arc::new(Count::default());
    {
        let mut dropped = pin!(sender.send_async(2));
        assert!(poll_once(dropped.as_mut(), &count).is_pending());
    }
    let mut send = pin!(sender.send_async(3));
    assert!(poll_once(send.as_mut(), &count).is_pending());
    assert_eq!(receiver.recv(), Ok(1));
    count.wait();
    assert!(matches!(poll_once(send.as_mut(), &count), Poll::Ready(Ok(()))));
    assert_eq!(receiver.recv(), Ok(3), "the future that was dropped sent nothing");
    sender.send(4).unwrap();
    let mut refused = Box::pin(sender.send_async(5));
    assert!(poll_once(refused.as_mut(), &count).is_pending());
    drop(receiver);
    assert_eq!(block_on(refused).unwrap_err().0, 5);
}

fn a_rendezvous_of_two_futures_is_refused() {
    let (sender, receiver) = channel::bounded(0);
    // A thread that waits to send, and a future that receives, do meet.
    let other = sender.clone();
    let sending = thread::spawn(move || other.send(1).unwrap());
    assert_eq!(block_on(receiver.recv_async()), Ok(1));
    sending.join().unwrap();
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(sender.send_async(1))));
    assert!(refused.unwrap_err().downcast::<&str>().unwrap().contains("capacity of at least 1"));
}

fn all_that_wait_are_notified() {
    let notify = Notify::new();
    let counts: Vec<_> = (0..3).map(|_| Arc::new(Count::default())).collect();
    let mut waits: Vec<_> = counts.iter().map(|_| Box::pin(notify.wait_async())).collect();
    for (wait, count) in waits.iter_mut().zip(&counts) {
        assert!(poll_once(wait.as_mut(), count).is_pending());
    }
    notify.notify_waiters();
    for (wait, count) in waits.iter_mut().zip(&counts) {
        count.wait();
        assert!(poll_once(wait.as_mut(), count).is_ready());
    }
    let mut later = Box::pin(notify.wait_async());
    assert!(poll_once(later.as_mut(), &counts[0]).is_pending(), "nothing was stored");
    notify.notify_one();
    block_on(later);
}

fn each_notification_lets_one_of_the_futures_pass() {
    let notify = Notify::new();
    let count = Arc::new(Count::default());
    let wait_twice = || {
        let mut waits: Vec<_> = (0..2).map(|_| Box::pin(notify.wait_async())).collect();
        for wait in &mut waits {
            assert!(poll_once(wait.as_mut(), &count).is_pending());
        }
        waits
    };
    let mut waits = wait_twice();
    for _ in 0..3 {
        notify.notify_one();
    }
    for wait in &mut waits {
        assert!(poll_once(wait.as_mut(), &count).is_ready());
    }
    assert!(!notify.try_wait(), "two waited, so two were stored");
    let dropped = wait_twice();
    notify.notify_one();
    notify.notify_one();
    drop(dropped);
    assert!(notify.try_wait() && !notify.try_wait(), "one is stored if none waits");
}

fn an_event_lets_all_pass() {
    let event = Arc::new(Event::new());
    let tasks: Vec<_> = (0..100)
        .map(|_| {
            let event = Arc::clone(&event);
            spawn(async move { event.wait_async().await })
        })
        .collect();
    thread::yield_now();
    event.set();
    tasks.into_iter().for_each(|task| task.join().unwrap());
}

fn futures_and_threads_share_a_socket() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let blocking = socket.get_ref().try_clone().unwrap();
    // A future that was woken and is never polled keeps no datagram from the thread.
    let count = Arc::new(Count::default());
    let mut buf = [0; 10];
    let mut idle = Box::pin(socket.recv_from(&mut buf));
    assert!(poll_once(idle.as_mut(), &count).is_pending());
    let reading = thread::spawn(move || {
        for _ in 0..2 {
            blocking.recv(&mut [0; 10]).unwrap();
        }
    });
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..2 {
        block_on(client.send_to(b"x", address)).unwrap();
    }
    reading.join().unwrap();
}

fn a_task_that_yields_lets_others_run() {
    let (mut client, mut server) = pair();
    let task = spawn(async move {
        let len = server.read(&mut [0; 10]).await.unwrap();
        server.shutdown(Shutdown::Both).unwrap();
        len
    });
    block_on(async {
        client.write_all(b"abc").await.unwrap();
        while !task.is_finished() {
            yield_now().await;
        }
        assert_eq!(task.await.unwrap(), 3);
    });
}
