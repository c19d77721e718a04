//! Both roles on Tailwater: a task for each connection, over its sockets.

use std::io::Write;
use std::net::SocketAddr;

use tailwater::future::net::{TcpListener, TcpStream};
use tailwater::future::{block_on, spawn};

use crate::http::{self, Course};
use crate::{Load, Result, Role};

/// Plays a role on user threads.
///
/// # Errors
/// The runtime's, a socket's, or [`http::ask`]'s.
pub fn run(role: Role) -> Result<()> {
    tailwater::RuntimeBuilder::new().run(move || match role {
        Role::Serve(address) => block_on(serve(address)),
        Role::Ask(load) => block_on(ask(load)),
    })?
}

async fn serve(address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    std::io::stdout().flush()?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.get_ref().set_nodelay(true)?;
        drop(spawn(http::serve(stream)));
    }
}

async fn ask(load: Load) -> Result<()> {
    let mut streams = Vec::new();
    for _ in 0..load.connections {
        let stream = TcpStream::connect(load.server).await?;
        stream.get_ref().set_nodelay(true)?;
        streams.push(stream);
    }
    let course = Course::new(load.warm_up, load.counted);
    let tasks: Vec<_> = streams.into_iter().map(|stream| spawn(http::ask(stream, course, spawn))).collect();
    let mut all = Vec::new();
    for task in tasks {
        all.append(&mut task.await.map_err(|_| "a task of the client panicked")??);
    }
    course.report(all)
}
