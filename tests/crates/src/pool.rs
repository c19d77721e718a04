//! A client that keeps connections: `hyper-util`'s pool over Tailwater's sockets.

use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::service::service_fn;
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use tailwater::future::hyper::{Executor, Timer};
use tailwater::future::net::{TcpListener, TcpStream};
use tailwater::future::{block_on, spawn};

/// A connection of the pool.
struct Pooled(TcpStream);

impl Connection for Pooled {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Pooled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Read::poll_read(Pin::new(&mut self.0), context, buf)
    }
}

impl Write for Pooled {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Write::poll_write(Pin::new(&mut self.0), context, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Write::poll_write_vectored(Pin::new(&mut self.0), context, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        Write::is_write_vectored(&self.0)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Write::poll_flush(Pin::new(&mut self.0), context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Write::poll_shutdown(Pin::new(&mut self.0), context)
    }
}

/// Requests one after the other share a connection; requests at once have one each.
pub fn client_pool() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&accepted);
    let server = spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            counter.fetch_add(1, SeqCst);
            let echo = service_fn(|request: Request<Incoming>| async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                Ok::<_, Infallible>(Response::new(Full::new(body)))
            });
            drop(spawn(async move {
                hyper::server::conn::http1::Builder::new().serve_connection(stream, echo).await
            }));
        }
    });
    // Boxed, for the pool moves its connecting futures.
    let connector = tower::service_fn(|to: Uri| {
        Box::pin(
            async move { TcpStream::connect(to.authority().expect("an address").as_str()).await.map(Pooled) },
        )
    });
    let client: Client<_, Full<Bytes>> =
        Client::builder(Executor).timer(Timer).pool_timer(Timer).build(connector);
    let ask = |number: usize| {
        let request = Request::post(format!("http://{address}/")).body(Full::from(number.to_string()));
        let answer = client.request(request.unwrap());
        async move { answer.await.unwrap().into_body().collect().await.unwrap().to_bytes() }
    };
    block_on(async {
        for number in 0..5 {
            assert_eq!(ask(number).await, number.to_string());
        }
        let answers = futures::future::join_all((0..8).map(ask)).await;
        assert!(answers.iter().enumerate().all(|(number, answer)| *answer == number.to_string()));
    });
    assert!(accepted.load(SeqCst) < 13, "connections are used again");
    drop(client);
    server.cancel();
}
