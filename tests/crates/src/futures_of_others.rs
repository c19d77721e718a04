//! Crates written for futures, over Tailwater's sockets, timers and tasks. None of Tokio's threads
//! runs here, except where a check says so.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use tailwater::future::hyper::{Executor, Timer};
use tailwater::future::net::{TcpListener, TcpStream};
use tailwater::future::{block_on, sleep, spawn};
use tailwater::sync::channel;
use tower::{Service, ServiceBuilder, ServiceExt};

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn connection() -> (TcpStream, TcpStream) {
    let (listener, address) = listen();
    let client = TcpStream::connect(address).await.unwrap();
    (client, listener.accept().await.unwrap().0)
}

/// `futures`: its traits for reading and writing, `select!` over a socket, a channel and a timer,
/// and collections of futures, whose wakers are their own.
pub fn futures() {
    use futures::{AsyncReadExt, AsyncWriteExt, FutureExt, StreamExt, stream::FuturesUnordered};

    block_on(async {
        let (mut client, mut server) = connection().await;
        let (sender, receiver) = channel::bounded(1);
        let mut order = Vec::new();
        for round in 0..3 {
            match round {
                0 => AsyncWriteExt::write_all(&mut client, b"x").await.unwrap(),
                1 => sender.send_async(()).await.unwrap(),
                _ => {}
            }
            let mut buf = [0; 1];
            let mut timer = sleep(Duration::from_millis(if round == 2 { 1 } else { 3_600_000 })).fuse();
            let mut message = pin!(receiver.recv_async().fuse());
            futures::select! {
                len = AsyncReadExt::read(&mut server, &mut buf).fuse() => order.push(("socket", len.unwrap())),
                message = message => order.push(("channel", usize::from(message.is_ok()))),
                () = timer => order.push(("timer", 0)),
            }
        }
        assert_eq!(order, [("socket", 1), ("channel", 1), ("timer", 0)]);

        let (listener, address) = listen();
        let answers = spawn(async move {
            let clients = (0..20_u8).map(|number| async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                AsyncWriteExt::write_all(&mut stream, &[number]).await.unwrap();
                let mut answer = [0];
                AsyncReadExt::read_exact(&mut stream, &mut answer).await.unwrap();
                answer[0]
            });
            clients.collect::<FuturesUnordered<_>>().map(u32::from).fold(0, |a, b| async move { a + b }).await
        });
        let mut streams = FuturesUnordered::new();
        for _ in 0..20 {
            let (mut stream, _) = listener.accept().await.unwrap();
            streams.push(async move {
                let mut byte = [0];
                AsyncReadExt::read_exact(&mut stream, &mut byte).await.unwrap();
                AsyncWriteExt::write_all(&mut stream, &byte).await.unwrap();
            });
        }
        while streams.next().await.is_some() {}
        assert_eq!(answers.await.unwrap(), (0..20).sum::<u32>());
    });
    // Another executor, on an ordinary thread.
    let (sender, receiver) = channel::bounded(1);
    let ordinary = std::thread::spawn(move || futures::executor::block_on(receiver.recv_async()));
    tailwater::thread::yield_now();
    sender.send(7).unwrap();
    assert_eq!(tailwater::blocking(|| ordinary.join().unwrap()), Ok(7));
}

/// `tokio`: reading, also by lines, writing and copying, and its channels, without its runtime.
pub fn tokio_io() {
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

    block_on(async {
        let (mut client, server) = connection().await;
        let echo = spawn(async move {
            let (mut reader, mut writer) = tokio::io::split(server);
            tokio::io::copy(&mut reader, &mut writer).await.unwrap();
            writer.shutdown().await.unwrap();
        });
        AsyncWriteExt::write_all(&mut client, b"one\ntwo\n").await.unwrap();
        let mut line = String::new();
        client.read_line(&mut line).await.unwrap();
        assert_eq!(line, "one\n");
        AsyncWriteExt::shutdown(&mut client).await.unwrap();
        let mut rest = String::new();
        AsyncReadExt::read_to_string(&mut client, &mut rest).await.unwrap();
        assert_eq!(rest, "two\n");
        echo.await.unwrap();

        let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
        let sending = spawn(async move {
            for n in 0..100 {
                sender.send(n).await.unwrap();
            }
        });
        let mut sum = 0;
        while let Some(n) = receiver.recv().await {
            sum += n;
        }
        sending.await.unwrap();
        assert_eq!(sum, (0..100).sum::<i32>());
    });
}

/// `tokio::time` panics at once without Tokio's runtime and says why; within the context of one,
/// whose threads are beside, it works.
pub fn tokio_time() {
    let alone =
        catch_unwind(AssertUnwindSafe(|| block_on(async { tokio::time::sleep(Duration::ZERO).await })));
    let message = *alone.unwrap_err().downcast::<String>().expect("tokio's message");
    assert!(message.contains("must be called from the context of a Tokio 1.x runtime"), "{message}");
    assert!(message.contains("use what tailwater::future has in place"), "the remedy: {message}");
    let runtime = tailwater::blocking(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap()
    });
    {
        let _context = runtime.enter();
        block_on(async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let late = tokio::time::timeout(Duration::from_millis(1), std::future::pending::<()>()).await;
            assert!(late.is_err());
        });
    }
    tailwater::blocking(|| drop(runtime));
}

/// TLS by `tokio-rustls`, which needs `tokio::io` alone.
pub fn tokio_rustls() {
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certified.cert.der().clone()).unwrap();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let server = rustls::ServerConfig::builder().with_no_client_auth();
    let server = server.with_single_cert(vec![certified.cert.der().clone()], key).unwrap();
    let client = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    block_on(async {
        let (near, far) = connection().await;
        let serving = spawn(async move {
            let mut tls = tokio_rustls::TlsAcceptor::from(Arc::new(server)).accept(far).await.unwrap();
            let mut question = [0; 5];
            tls.read_exact(&mut question).await.unwrap();
            tls.write_all(&question).await.unwrap();
            tls.flush().await.unwrap();
        });
        let name = ServerName::try_from("localhost").unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
        let mut tls = connector.connect(name, near).await.unwrap();
        tls.write_all(b"hello").await.unwrap();
        let mut answer = [0; 5];
        tls.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"hello");
        serving.await.unwrap();
    });
}

async fn text(response: Response<Incoming>) -> (StatusCode, String) {
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// A server for one request after another on each connection, with a timeout for headers, and
/// clients.
pub fn hyper_http1() {
    let (listener, address) = listen();
    let server = spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let hello = service_fn(|request: Request<Incoming>| async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::from([&b"hello "[..], &body].concat())))
            });
            drop(spawn(async move {
                let mut builder = hyper::server::conn::http1::Builder::new();
                builder.timer(Timer).header_read_timeout(Duration::from_secs(60));
                builder.serve_connection(stream, hello).await
            }));
        }
    });
    let client = |name: String| async move {
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        let connection = spawn(connection);
        for _ in 0..5 {
            let request = Request::post("/").body(Full::<Bytes>::from(name.clone())).unwrap();
            let (status, body) = text(sender.send_request(request).await.unwrap()).await;
            assert_eq!((status, body), (StatusCode::OK, format!("hello {name}")));
        }
        drop(sender);
        connection.await.unwrap().unwrap();
    };
    let clients: Vec<_> = (0..10).map(|number| spawn(client(number.to_string()))).collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    server.cancel();
}

/// Many requests at once over one connection.
pub fn hyper_http2() {
    block_on(async {
        let (near, far) = connection().await;
        let server = spawn(async move {
            let echo = service_fn(|request: Request<Incoming>| async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                Ok::<_, Infallible>(Response::new(Full::new(body)))
            });
            let builder = hyper::server::conn::http2::Builder::new(Executor);
            builder.serve_connection(far, echo).await
        });
        let builder = hyper::client::conn::http2::Builder::new(Executor);
        let (sender, connection) = builder.handshake(near).await.unwrap();
        let connection = spawn(connection);
        let requests = (0..20).map(|number: u32| {
            let mut sender = sender.clone();
            async move {
                let body = Full::<Bytes>::from(vec![7; 1000 * number as usize]);
                let response = sender.send_request(Request::post("http://localhost/").body(body).unwrap());
                response.await.unwrap().into_body().collect().await.unwrap().to_bytes().len()
            }
        });
        let lengths = futures::future::join_all(requests).await;
        assert_eq!(lengths, (0..20).map(|number| 1000 * number).collect::<Vec<_>>());
        drop(sender);
        connection.await.unwrap().unwrap();
        server.await.unwrap().unwrap();
    });
}

/// A router behind hyper's server, with state and a parameter.
pub fn axum() {
    use axum::extract::{Path, State};
    use axum::routing::get;

    let visits = Arc::new(AtomicUsize::new(0));
    let greet = |State(visits): State<Arc<AtomicUsize>>, Path(name): Path<String>| async move {
        visits.fetch_add(1, SeqCst);
        sleep(Duration::from_micros(10)).await;
        format!("hello {name}")
    };
    let router = axum::Router::new().route("/greet/{name}", get(greet)).with_state(Arc::clone(&visits));
    block_on(async move {
        let (near, far) = connection().await;
        let service = service_fn(move |request: Request<Incoming>| router.clone().oneshot(request));
        let server = spawn(async move {
            hyper::server::conn::http1::Builder::new().serve_connection(far, service).await
        });
        let (mut sender, connection) = hyper::client::conn::http1::handshake(near).await.unwrap();
        let connection = spawn(connection);
        for (path, status, body) in
            [("/greet/you", StatusCode::OK, "hello you"), ("/nowhere", StatusCode::NOT_FOUND, "")]
        {
            let request = Request::get(path).body(Full::<Bytes>::default()).unwrap();
            assert_eq!(text(sender.send_request(request).await.unwrap()).await, (status, body.to_owned()));
        }
        drop(sender);
        connection.await.unwrap().unwrap();
        server.await.unwrap().unwrap();
    });
    assert_eq!(visits.load(SeqCst), 1);
}

/// Middleware that waits for a permit works; middleware with Tokio's timers panics at once.
pub fn tower() {
    let at_once = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (running, peak) = (Arc::clone(&at_once), Arc::clone(&most));
    let slow = tower::service_fn(move |number: u32| {
        let (running, peak) = (Arc::clone(&running), Arc::clone(&peak));
        async move {
            peak.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
            sleep(Duration::from_micros(50)).await;
            running.fetch_sub(1, SeqCst);
            Ok::<_, Infallible>(number)
        }
    });
    let limited = ServiceBuilder::new().concurrency_limit(2).service(slow.clone());
    let calls = (0..20).map(|number| spawn(limited.clone().oneshot(number)));
    let sum: u32 = calls.collect::<Vec<_>>().into_iter().map(|call| call.join().unwrap().unwrap()).sum();
    assert_eq!(sum, (0..20).sum::<u32>());
    assert!(most.load(SeqCst) <= 2);
    let mut timed = ServiceBuilder::new().timeout(Duration::from_secs(1)).service(slow);
    let refused = catch_unwind(AssertUnwindSafe(|| block_on(timed.call(1))));
    assert!(refused.is_err(), "tokio's timers need tokio's runtime");
}
