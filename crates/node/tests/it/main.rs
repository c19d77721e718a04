//! The agent as a process, beside a stand-in for the kubelet and one for the container runtime,
//! which speak their protocols, and a socket that answers as an IOKernel does.

mod containers;
mod devices;
mod iokernel;
mod kubelet;
mod runtime;

use std::path::Path;
use std::process::Command;

use tailwater_testkit::Program;

/// Starts the agent with all its sockets in a folder.
fn agent(folder: &Path) -> Program {
    agent_of(folder, &folder.join("run/socket"))
}

/// As [`agent`], for an IOKernel at another socket.
fn agent_of(folder: &Path, iokernel: &Path) -> Program {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-node"));
    command.arg("--iokernel").arg(iokernel).arg("--plugins").arg(folder.join("plugins"));
    Program::start(command.arg("--nri").arg(folder.join("nri.sock")).args(["--window", "1"]))
}

/// Makes a folder for sockets, whose paths have 107 characters at most: too few for some TMPDIR.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    for inner in ["run", "plugins"] {
        std::fs::create_dir(folder.path().join(inner)).expect("a folder");
    }
    folder
}
