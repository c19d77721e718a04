//! A TAP device that the service manager keeps lasts over a crash of the IOKernel, and with it the
//! connections of Linux.
//!
//! This test is the manager. It runs in a network namespace; without the right to make one, or
//! without /dev/net/tun, it is skipped.

use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fd::OwnedFd;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tailwater_testkit::namespace::Namespace;
use tailwater_testkit::{PATIENCE, Program, is_rerun, rerun, socket_name, until};

use crate::common::stats;
use crate::tap::works_here;

/// The test that is the service.
const SERVICE: &str = "a_service_that_echoes";
/// Its address.
const IP: &str = "10.77.0.9";
/// How often the IOKernel is killed.
const TIMES: usize = 3;

#[test]
fn a_service_that_echoes() {
    if !is_rerun(SERVICE) {
        return;
    }
    let ended = tailwater::RuntimeBuilder::new().name("echo").kthreads(1).run(|| {
        let listener = tailwater::net::TcpListener::bind("0.0.0.0:7").expect("a port");
        loop {
            let (mut connection, _) = listener.accept().expect("a connection");
            tailwater::thread::spawn(move || {
                let mut buffer = [0; 64];
                while let Ok(len @ 1..) = connection.read(&mut buffer) {
                    if connection.write_all(&buffer[..len]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    ended.expect("it is ended by its test");
}

/// What a service is to its manager.
struct Manager(UnixDatagram);

impl Manager {
    fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    /// Returns all messages up to the one that the service is ready, with their descriptors.
    fn until_ready(&self) -> Vec<(String, Option<OwnedFd>)> {
        let mut messages = Vec::new();
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let (mut control, mut text) = (RecvAncillaryBuffer::new(&mut space), [0; 256]);
            let len =
                recvmsg(&self.0, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC)
                    .expect("a message in time")
                    .bytes;
            let descriptor = control.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
                _ => None,
            });
            let text = String::from_utf8_lossy(&text[..len]).into_owned();
            if text == "READY=1" {
                return messages;
            }
            messages.push((text, descriptor));
        }
    }
}

/// Starts an IOKernel of this manager, with the device that was kept under this name.
fn start(socket: &str, notify: &Path, kept: Option<(&str, &OwnedFd)>) -> Program {
    let settings = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/busy.toml");
    let mut command = Command::new("sh");
    // Descriptor 3 is the first that a manager passes; its variables name the process.
    command.args(["-c", "exec 3<&0 0</dev/null; LISTEN_PID=$$ exec \"$0\" \"$@\""]);
    command.arg(env!("CARGO_BIN_EXE_tailwater"));
    command.args(["iokernel", "--share-cores", "--socket", socket, "--config", settings]);
    command.args(["--tap", "tw0", "--host-ip", "10.77.0.1"]).env("NOTIFY_SOCKET", notify);
    let input = match kept {
        Some((name, device)) => {
            command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", name);
            device.try_clone().unwrap()
        }
        None => File::open("/dev/null").unwrap().into(),
    };
    Program::spawn(command.stdin(Stdio::from(input)).stdout(Stdio::piped()).stderr(Stdio::piped()))
}

fn exchange(client: &mut TcpStream, text: &[u8]) {
    client.write_all(text).expect("the connection lasts");
    let mut answer = vec![0; text.len()];
    client.read_exact(&mut answer).expect("the connection lasts");
    assert_eq!(answer, text);
}

#[test]
fn connections_of_linux_go_on_when_a_killed_iokernel_gets_its_device_back() {
    if !works_here() {
        return;
    }
    let here = match Namespace::new() {
        Ok(here) => here,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    // Short: the path of a socket has at most 108 bytes (unix(7)).
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let (notify, socket) = (folder.path().join("notify"), socket_name("kept"));
    let manager = Manager::at(&notify);
    let mut iokernel = here.inside(|| start(&socket, &notify, None));
    let (message, device) = manager.until_ready().pop().expect("a device is stored");
    assert_eq!(message, "FDSTORE=1\nFDNAME=tw0.0");
    let device = device.expect("the device itself");
    let mut service = rerun(module_path!(), SERVICE);
    service.envs([
        ("TAILWATER_IOKERNEL", &*socket),
        ("TAILWATER_IP", IP),
        ("TAILWATER_IOKERNEL_WAIT_MS", "0"),
    ]);
    let _service = here.inside(|| Program::start(&mut service));
    let mut client = None;
    until("the service accepts a connection of Linux", || {
        client = here.inside(|| TcpStream::connect((IP, 7))).ok();
        client.is_some()
    });
    let mut client = client.expect("the wait has ended");
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    exchange(&mut client, b"before");
    let link = || here.run("ip", &["-o", "link", "show", "tw0"]);
    let before = link();
    for _ in 0..TIMES {
        iokernel.kill();
        assert!(link().contains("tw0"), "the device is gone");
        // It is under way while no IOKernel runs.
        client.write_all(b"while none runs").expect("the connection lasts");
        iokernel = here.inside(|| start(&socket, &notify, Some(("tw0.0", &device))));
        manager.until_ready();
        let mut answer = [0; 15];
        client.read_exact(&mut answer).expect("the connection lasts");
        exchange(&mut client, b"after");
        until("the service is registered", || {
            here.inside(|| stats(&socket)).is_some_and(|all| all["runtimes"][0]["name"] == "echo")
        });
    }
    let address = |link: &str| link.split("link/ether ").nth(1).map(|rest| rest[..17].to_owned());
    assert_eq!(address(&link()), address(&before), "another MAC address");
}
