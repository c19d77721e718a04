//! Both roles on a Tokio runtime of one thread, over the kernel's sockets.

use std::net::SocketAddr;

use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::http::{self, Course};
use crate::{Load, Result, Role};

/// Plays a role on the calling thread.
///
/// # Errors
/// A socket's, or [`http::ask`]'s.
pub fn run(role: Role) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async move {
        match role {
            Role::Serve(address) => serve(address).await,
            Role::Ask(load) => ask(load).await,
        }
    })
}

async fn serve(address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        drop(tokio::spawn(http::serve(TokioIo::new(stream))));
    }
}

async fn ask(load: Load) -> Result<()> {
    let mut streams = Vec::new();
    for _ in 0..load.connections {
        let stream = TcpStream::connect(load.server).await?;
        stream.set_nodelay(true)?;
        streams.push(TokioIo::new(stream));
    }
    let course = Course::new(load.warm_up, load.counted);
    let tasks: Vec<_> = streams
        .into_iter()
        .map(|stream| tokio::spawn(http::ask(stream, course, |driver| tokio::spawn(driver))))
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.append(&mut task.await??);
    }
    course.report(all)
}
