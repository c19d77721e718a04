//! The services inside this program: how `bench` and `reproduce` start them without other files.

use std::io::ErrorKind;
use std::net::Ipv4Addr;

use clap::{Args, Subcommand};
use tailwater::net::UdpSocket;
use tailwater_testbed::app::{Conditions, Service};

use crate::bench::{cores, dispatch, hostile, neighbour, ports, tcp, threads};
use crate::tokio_spin;

/// Run one of the services that `bench` and `reproduce` use
#[derive(Debug, Args)]
pub struct AppArgs {
    #[command(flatten)]
    conditions: Conditions,
    #[command(subcommand)]
    app: App,
}

#[derive(Debug, Subcommand)]
enum App {
    #[command(flatten)]
    Common(Service),
    /// Keep items in memory for clients of memcached
    Kv(Box<tailwater_kv::cli::Options>),
    /// Serve zones
    Dns(tailwater_dns::cli::Options),
    /// Send back what reaches UDP port 7
    Echo,
    /// Serve spin requests on Tokio
    TokioSpin(tokio_spin::Options),
    Cores(cores::ChildArgs),
    Dispatch(dispatch::ChildArgs),
    Hostile(hostile::ChildArgs),
    Neighbour(neighbour::ChildArgs),
    Ports(ports::ChildArgs),
    Tcp(tcp::ServiceArgs),
    Threads(threads::ChildArgs),
}

/// Runs the service until it ends.
///
/// # Errors
/// The service's, or when its conditions are refused.
pub fn run(args: &AppArgs) -> anyhow::Result<()> {
    args.conditions.apply()?;
    match &args.app {
        App::Common(service) => service.run(),
        App::Kv(options) => tailwater_kv::cli::run(options),
        App::Dns(options) => tailwater_dns::cli::run(options),
        App::Echo => Ok(tailwater::RuntimeBuilder::new().run(echo)??),
        App::TokioSpin(options) => tokio_spin::run(options),
        App::Cores(args) => cores::run_child(args),
        App::Dispatch(args) => dispatch::run_child(args),
        App::Hostile(args) => hostile::run_child(args),
        App::Neighbour(args) => neighbour::run_child(args),
        App::Ports(args) => ports::run_child(args),
        App::Tcp(args) => tcp::run_service(args),
        App::Threads(args) => threads::run_child(args),
    }
}

/// Echoes datagrams for `bench switch` and `bench hostile`.
fn echo() -> std::io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 7))?;
    let mut datagram = [0; 2048];
    loop {
        let (len, client) = socket.recv_from(&mut datagram)?;
        match socket.send_to(&datagram[..len], client) {
            // One unreachable client must not end the service for the others.
            Err(error) if error.kind() != ErrorKind::HostUnreachable => return Err(error),
            _ => {}
        }
    }
}
