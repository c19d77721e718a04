//! A job beside its plan: the server, the protocol with its files, and the way there.
//!
//! Owns the form in which agents get it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tailwater_loadgen::protocol::{Medium, Protocol, ProtocolError, from_name};
use tailwater_loadgen::{Control, Measurement, Plan, kernel_udp};
use tailwater_testbed::exit::EndsWith2;
use tailwater_workload::ServiceTime;

use super::args::LoadArgs;
use super::hint;
use super::transport::{Over, Question, Transport, Way};
use crate::query;

/// Longest file that a protocol reads, such as a list of names: agents get it with each job.
const MAX_FILE: u64 = 16 << 20;

/// Time in which one of several addresses is tried, before the next.
const TRY: Duration = Duration::from_millis(250);

/// Returns the first address of a name at which a server is, within the time that it may take to
/// appear: a service on `localhost` often has one of the two addresses only.
fn answering(addresses: &[SocketAddr], protocol: &dyn Protocol, way: &Way) -> Option<SocketAddr> {
    let (start, wait) = (Instant::now(), Duration::from_nanos(way.wait_ns));
    let stop = AtomicBool::new(false);
    let answers = |address: &&SocketAddr| match way.connections {
        Some(_) => TcpStream::connect_timeout(address, TRY).is_ok(),
        None => kernel_udp::contact_server(protocol, **address, TRY, &stop).is_ok(),
    };
    loop {
        let found = addresses.iter().find(answers);
        if found.is_some() || start.elapsed() >= wait {
            return found.copied();
        }
        std::thread::sleep(TRY);
    }
}

/// A server and how to ask it: what a generator has to know beside the plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobTarget {
    /// The server.
    pub server: SocketAddr,
    /// The server as it was written; HTTP requests contain it.
    pub authority: String,
    /// The protocol as it was written.
    pub protocol: String,
    /// The files that the protocol names, by path: an agent reads no files of its machine.
    pub files: BTreeMap<String, String>,
    /// How to reach the server.
    pub way: Way,
    /// True if the server first stores what the protocol reads.
    pub preload: bool,
}

impl JobTarget {
    /// Returns the target that the arguments name, with the files that its protocol reads.
    ///
    /// # Errors
    /// If there is no server, the protocol is unknown, or a file cannot be read.
    pub fn new(args: &LoadArgs) -> anyhow::Result<Self> {
        let server = args.server.as_ref().context("the server's address is missing")?;
        let mut target = Self {
            server: server.addresses[0],
            authority: server.authority.clone(),
            protocol: args.protocol.clone(),
            files: BTreeMap::new(),
            way: args.way(),
            preload: !args.no_preload,
        };
        let files = RefCell::new(BTreeMap::new());
        // Read here, where the files are, and before anything starts.
        let protocol = from_name(
            &target.protocol,
            target.medium(),
            &ServiceTime::constant(0),
            &target.authority,
            |path: &str| {
                let mut text = String::new();
                File::open(path)?.take(MAX_FILE + 1).read_to_string(&mut text)?;
                if text.len() as u64 > MAX_FILE {
                    return Err(io::Error::other(format!("{path} is longer than {} MiB", MAX_FILE >> 20)));
                }
                files.borrow_mut().insert(path.to_owned(), text.clone());
                Ok(text)
            },
        )
        .map_err(|error| match error {
            ProtocolError::File { .. } => error.into(),
            _ => EndsWith2::wrap(error.into()),
        })?;
        target.files = files.into_inner();
        if let (Over::Kernel, [_, _, ..]) = (target.way.over, &server.addresses[..])
            && let Some(address) = answering(&server.addresses, &*protocol, &target.way)
        {
            target.server = address;
        }
        Ok(target)
    }

    fn medium(&self) -> Medium {
        if self.way.connections.is_some() { Medium::Stream } else { Medium::Datagram }
    }

    /// Returns the error, with what to try if the server is on Tailwater and was looked for on
    /// Linux.
    fn with_advice(&self, error: anyhow::Error) -> anyhow::Error {
        if self.way.over != Over::Kernel {
            return error;
        }
        let socket = self.way.iokernel.clone().unwrap_or_else(crate::socket::found);
        let statistics = query::statistics(&socket).ok();
        match hint::advice(self.server.ip(), &socket, statistics.as_ref()) {
            Some(advice) => anyhow::anyhow!("{error:#}\n{advice}"),
            None => error,
        }
    }

    /// Runs `plan` against the server over `transport`.
    ///
    /// # Errors
    /// If the run could not start.
    pub fn run(
        &self,
        plan: &Plan,
        seed: u64,
        transport: &Transport,
        control: &Control<'_>,
    ) -> anyhow::Result<Measurement> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let read_file = |path: &str| self.files.get(path).cloned().ok_or_else(missing);
        let protocol = from_name(&self.protocol, self.medium(), &plan.service, &self.authority, read_file)?;
        let question = Question { server: self.server, protocol, preload: self.preload, seed, plan };
        transport.run(&self.way, question, control).map_err(|error| self.with_advice(error))
    }
}
