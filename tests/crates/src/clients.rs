//! Clients of HTTP, databases and RPC: those that bring a network of their own run beside the
//! kthreads, those that take a connection run on Tailwater's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use tailwater::future::hyper::Executor;
use tailwater::future::net::{TcpListener, TcpStream};
use tailwater::future::{block_on, spawn};
use tokio::runtime::Runtime;
use tower::ServiceExt;

/// Returns a runtime of Tokio on threads of its own.
fn tokio_beside() -> Runtime {
    tailwater::blocking(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    })
}

/// Starts a server on Linux's network that answers one request; returns its address.
fn http_server() -> SocketAddr {
    tailwater::blocking(|| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
            while head.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello";
            stream.write_all(answer.as_bytes()).unwrap();
        });
        address
    })
}

/// `reqwest` needs Tokio's reactor: its futures are waited for in `blocking`.
pub fn reqwest() {
    let (runtime, address) = (tokio_beside(), http_server());
    let text = tailwater::blocking(|| {
        runtime.block_on(async { reqwest::get(format!("http://{address}/")).await?.text().await })
    });
    assert_eq!(text.unwrap(), "hello");
    tailwater::blocking(|| drop(runtime));
}

/// `ureq` blocks on Linux's sockets.
pub fn ureq() {
    let address = http_server();
    let text = tailwater::blocking(|| {
        ureq::get(format!("http://{address}/")).call().unwrap().body_mut().read_to_string().unwrap()
    });
    assert_eq!(text, "hello");
}

/// `sqlx` needs Tokio's reactor, too.
pub fn sqlx() {
    let runtime = tokio_beside();
    let answer: i64 = tailwater::blocking(|| {
        runtime.block_on(async {
            let pool = sqlx::SqlitePool::connect("sqlite::memory:").await.unwrap();
            sqlx::query_scalar("SELECT 40 + 2").fetch_one(&pool).await.unwrap()
        })
    });
    assert_eq!(answer, 42);
    tailwater::blocking(|| drop(runtime));
}

/// `redis` takes a connection, and returns the future that drives it.
pub fn redis() {
    use redis::AsyncCommands;

    let listener = tailwater::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = tailwater::thread::spawn(move || answer_commands(listener.accept().unwrap().0));
    block_on(async {
        let stream = TcpStream::connect(address).await.unwrap();
        // A limit of time for answers would need Tokio's timers.
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let info = redis::RedisConnectionInfo::default();
        let made = redis::aio::MultiplexedConnection::new_with_config(&info, stream, config).await;
        let (mut connection, driver) = made.unwrap();
        let driver = spawn(driver);
        let milk: String = connection.get("milk").await.unwrap();
        assert_eq!(milk, "two");
        drop(connection);
        driver.await.unwrap();
    });
    server.join().unwrap();
}

/// Answers GET with `two` and all other commands with OK, until the client closes.
fn answer_commands(stream: tailwater::net::TcpStream) {
    let mut answers = stream.try_clone().unwrap();
    let mut lines = BufReader::new(stream);
    let number = |lines: &mut BufReader<_>| {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        line.trim().get(1..).and_then(|number| number.parse::<usize>().ok())
    };
    while let Some(words) = number(&mut lines) {
        let mut command = Vec::new();
        for _ in 0..words {
            let len = number(&mut lines).unwrap();
            let mut word = vec![0; len + 2];
            lines.read_exact(&mut word).unwrap();
            command.push(word);
        }
        let answer = if command[0].eq_ignore_ascii_case(b"get\r\n") { "$3\r\ntwo\r\n" } else { "+OK\r\n" };
        answers.write_all(answer.as_bytes()).unwrap();
    }
}

/// `tonic` without its transport: the service behind hyper's server, the client over hyper's.
pub fn tonic() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;

    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let near = TcpStream::connect(address).await.unwrap();
        let (far, _) = listener.accept().await.unwrap();
        let (_reporter, health) = tonic_health::server::health_reporter();
        let routes = tonic::service::Routes::new(health).prepare();
        let server = spawn(async move {
            let call = service_fn(move |request: Request<Incoming>| routes.clone().oneshot(request));
            hyper::server::conn::http2::Builder::new(Executor).serve_connection(far, call).await
        });
        let builder = hyper::client::conn::http2::Builder::new(Executor);
        let (sender, connection) = builder.handshake::<_, tonic::body::Body>(near).await.unwrap();
        let connection = spawn(connection);
        let channel = tower::service_fn(move |request| sender.clone().send_request(request));
        let mut client = HealthClient::with_origin(channel, "http://localhost".parse().unwrap());
        let request = HealthCheckRequest { service: String::new() };
        let answer = client.check(request).await.unwrap().into_inner();
        assert_eq!(answer.status(), tonic_health::ServingStatus::Serving.into());
        drop(client);
        connection.await.unwrap().unwrap();
        server.await.unwrap().unwrap();
    });
}
