//! The spin service on Tokio, as a program with cheap tasks on Linux would be written.
//!
//! Owns a multi-thread runtime with one task for each worker, all on one socket.
//! [`tailwater_spin::handle`] handles requests, as on every system. The socket holds as many
//! requests as one of Tailwater's, as far as the system allows ([`tailwater_placement::buffer`]).
//! The service ends with its process.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use tailwater_placement::buffer::hold_as_many;
use tailwater_spin::Spinner;
use tailwater_workload::spin::REQUEST_LEN;
use tokio::net::UdpSocket;

/// What to serve.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Address and UDP port
    #[arg(long)]
    listen: SocketAddr,
    /// Worker threads
    #[arg(long)]
    threads: usize,
    /// Speed of the work in iterations per millisecond
    #[arg(long)]
    speed: u64,
}

/// Prints where it listens, then serves for ever.
///
/// # Errors
/// If the runtime does not start or the socket is refused.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(options.threads.max(1))
        .enable_io()
        .build()
        .context("cannot start Tokio")?;
    runtime.block_on(async {
        let socket = UdpSocket::bind(options.listen)
            .await
            .with_context(|| format!("cannot listen on {}", options.listen))?;
        hold_as_many(&socket).context("cannot size the receive buffer")?;
        writeln!(std::io::stdout(), "listening on {}", socket.local_addr()?)?;
        let (socket, spinner) = (Arc::new(socket), Spinner::with_speed(options.speed));
        let tasks: Vec<_> =
            (0..options.threads.max(1)).map(|_| tokio::spawn(serve(Arc::clone(&socket), spinner))).collect();
        for task in tasks {
            task.await.context("a task panicked")?;
        }
        Ok(())
    })
}

async fn serve(socket: Arc<UdpSocket>, spinner: Spinner) {
    let origin = Instant::now();
    let now_ns = || origin.elapsed().as_nanos() as u64;
    // One byte more than a request, to recognize longer datagrams.
    let mut bytes = [0; REQUEST_LEN + 1];
    loop {
        // An error concerns an earlier reply, whose loss its client notices.
        let Ok((len, client)) = socket.recv_from(&mut bytes).await else { continue };
        if let Ok(reply) = tailwater_spin::handle(&bytes[..len], &spinner, now_ns, &mut || {}) {
            let _ = socket.send_to(&reply, client).await;
        }
    }
}
