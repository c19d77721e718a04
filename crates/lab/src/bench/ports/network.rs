//! Network namespaces and devices of `bench ports` and `bench events`.
//!
//! Owns [`Namespace`], which has no name: a child process holds it, and everything in it (veth
//! pairs, TAP devices, attached programs) ends with that process, which the kernel kills if this
//! one dies. A thread enters one and starts its processes there. The loopback interface is up.

use std::fs::File;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::fd::AsFd;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tailwater_testbed::child::{ChildProcess, Spec};
use tailwater_testbed::interrupt::Interrupt;

/// What a holder runs: it says when its namespace is there, and stays until it is killed.
const HOLD: &str = "ip link set lo up && echo ready && exec sleep infinity";

/// A network namespace, which ends when this is dropped.
#[derive(Debug)]
pub struct Namespace {
    holder: ChildProcess,
}

impl Namespace {
    /// # Errors
    /// Without `CAP_SYS_ADMIN`, `unshare` or `ip`, or on a signal.
    pub fn new(interrupt: &Interrupt) -> Result<Self> {
        let words = ["unshare", "--net", "sh", "-c", HOLD];
        let spec = Spec { app: "exec", arguments: words.map(str::to_owned).to_vec(), ..Spec::default() };
        let mut holder = ChildProcess::start(&spec)?;
        let line = holder
            .read_line(interrupt)
            .context("no network namespace: run as root, with `unshare` (util-linux) and `ip` (iproute2)")?;
        ensure!(line == "ready", "a network namespace's process printed {line:?}, not `ready`");
        Ok(Self { holder })
    }

    /// Moves the calling thread into it; threads and processes that it starts are in it, too.
    pub fn enter(&self) -> Result<()> {
        let path = format!("/proc/{}/ns/net", self.holder.id());
        let file = File::open(&path).with_context(|| format!("cannot open {path}"))?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .context("cannot enter a network namespace")
    }

    /// Joins the namespace of the calling thread and this one by a veth pair with the ends `here`
    /// and `there`, both up and with this MTU; `there` gets an address, and `here` if one is given.
    pub(super) fn join(&self, here: (&str, Option<&str>), there: (&str, &str), mtu: u16) -> Result<()> {
        let (holder, mtu) = (self.holder.id().to_string(), mtu.to_string());
        let near = ["link", "add", here.0, "mtu", &mtu, "type", "veth"];
        let far = ["peer", "name", there.0, "mtu", &mtu, "netns", &holder];
        ip(&[near, far].concat())?;
        if let Some(address) = here.1 {
            ip(&["addr", "add", address, "dev", here.0])?;
        }
        ip(&["link", "set", here.0, "up"])?;
        let inside = |words: &[&str]| command("nsenter", &[&["-t", &holder, "-n", "ip"], words].concat());
        inside(&["addr", "add", there.1, "dev", there.0])?;
        inside(&["link", "set", there.0, "up"])
    }
}

fn ip(words: &[&str]) -> Result<()> {
    command("ip", words)
}

fn command(program: &str, words: &[&str]) -> Result<()> {
    let output =
        Command::new(program).args(words).output().with_context(|| format!("cannot run {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {} fails: {}", words.join(" "), said.trim());
    Ok(())
}
