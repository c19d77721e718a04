//! Calls that sleep in the kernel and hold their kthread's core. With one kthread, the thread that
//! could end the wait cannot run: the check returns only if the stall detector takes the waiting
//! thread off its kthread.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use tailwater::thread;

/// A lock of `std` that is held while its holder yields.
pub fn std_mutex() {
    let lock = Arc::new(std::sync::Mutex::new(0));
    contend(move |hold| {
        let mut value = lock.lock().unwrap();
        hold();
        *value += 1;
    });
}

/// A lock of `parking_lot` that is held while its holder yields.
pub fn parking_lot_mutex() {
    let lock = Arc::new(parking_lot::Mutex::new(0));
    contend(move |hold| {
        let mut value = lock.lock();
        hold();
        *value += 1;
    });
}

/// Makes two user threads take a lock; the first yields while it holds it, until the second is
/// about to take it.
fn contend(locked: impl Fn(&dyn Fn()) + Clone + Send + 'static) {
    static HELD: AtomicBool = AtomicBool::new(false);
    static WANTED: AtomicBool = AtomicBool::new(false);
    let first = {
        let locked = locked.clone();
        thread::spawn(move || {
            locked(&|| {
                HELD.store(true, SeqCst);
                while !WANTED.load(SeqCst) {
                    thread::yield_now();
                }
            });
        })
    };
    let second = thread::spawn(move || {
        while !HELD.load(SeqCst) {
            thread::yield_now();
        }
        WANTED.store(true, SeqCst);
        locked(&|| {});
    });
    first.join().unwrap();
    second.join().unwrap();
}

/// A socket of `std` waits in the kernel for a client that is also a user thread.
pub fn std_net() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || listener.accept().map(drop).unwrap());
    thread::yield_now();
    let mut client = std::net::TcpStream::connect(address).unwrap();
    client.write_all(b"hello").unwrap();
    server.join().unwrap();
}

/// A channel of `std` waits in the kernel for a sender that is a user thread.
pub fn std_channel() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let waiting = thread::spawn(move || receiver.recv().unwrap());
    thread::yield_now();
    sender.send(5).unwrap();
    assert_eq!(waiting.join().unwrap(), 5);
}

/// A user thread parks by `std`, for another one to unpark it.
pub fn std_park() {
    let (sender, receiver) = tailwater::sync::mpsc::channel();
    let parked = thread::spawn(move || {
        sender.send(std::thread::current()).unwrap();
        std::thread::park();
    });
    receiver.recv().unwrap().unpark();
    parked.join().unwrap();
}
