//! Crates with threads of their own, which run beside the kthreads. Their pools are started in
//! `tailwater::blocking`: threads inherit the cores of the thread that starts them, and that one is
//! off the managed cores.

use std::io::{Read, Write};

use ::tokio::io::{AsyncReadExt, AsyncWriteExt};
use ::tokio::runtime::Runtime;
use rayon::prelude::*;
use tailwater::thread;

/// The caller waits without a core; the pool's threads work.
pub fn rayon() {
    let pool = tailwater::blocking(|| rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap());
    let numbers: Vec<u64> = (0..100_000).collect();
    let other = thread::spawn(|| thread::yield_now());
    let sum: u64 = tailwater::blocking(|| pool.install(|| numbers.par_iter().map(|n| n * n).sum()));
    assert_eq!(sum, numbers.iter().map(|n| n * n).sum::<u64>());
    other.join().unwrap();
}

/// A separate Tokio runtime: user threads wait for its futures in `blocking`, tasks send to user
/// threads through Tailwater's channels. Tokio's sockets are Linux's, so it can also reach hosts
/// beyond Tailwater's network.
pub fn tokio() {
    let runtime = tailwater::blocking(|| {
        let mut builder = ::tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    });
    let (done, finished) = tailwater::sync::mpsc::channel();
    let address = tailwater::blocking(|| runtime.block_on(echo_server(done)));
    let answer = tailwater::blocking(|| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(b"hello").unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
        answer
    });
    assert_eq!(&answer, b"hello");
    // The task sends, the user thread waits without a core.
    assert_eq!(finished.recv().unwrap(), 5);
    tailwater::blocking(|| Runtime::shutdown_background(runtime));
}

/// Starts a server for one connection on the Tokio runtime; returns its address.
async fn echo_server(done: tailwater::sync::mpsc::Sender<usize>) -> std::net::SocketAddr {
    let listener = ::tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    ::tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut question = [0; 5];
        stream.read_exact(&mut question).await.unwrap();
        stream.write_all(&question).await.unwrap();
        done.send(question.len()).unwrap();
    });
    address
}
