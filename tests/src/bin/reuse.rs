//! An attack by a process number that is used again, as process 1 of a PID namespace of its own:
//! `reuse SOCKET` starts an IOKernel there and prints its last answer. Each step is a process:
//!
//! 1. `connect` registers, starts `send` with the connection as its input, and ends.
//! 2. `send` waits for that, starts a stranger that gets the same number, and sends that number as
//!    its kthread.

#![expect(clippy::zombie_processes, reason = "the end of process 1 ends and reaps all others")]

use std::io::{BufRead, BufReader, Write, stdin};
use std::path::Path;
use std::process::{Command, Stdio};
use tailwater_iokernel_testing::{RawSpec, register};
use tailwater_shm::control::{ClientMessage, ServerMessage, receive, send};
use tailwater_testkit::until;

/// Maximum number of strangers; each misses the number only if something else starts just then.
const STRANGERS: u32 = 100;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let own = std::env::current_exe().expect("this program has a path");
    match &words[..] {
        [socket] => {
            let mut iokernel = Command::new(own.with_file_name("iokernel"));
            let mut iokernel = iokernel.arg(socket).stdout(Stdio::piped()).spawn().expect("an IOKernel");
            let ready = BufReader::new(iokernel.stdout.take().expect("piped")).lines().next();
            assert_eq!(ready.expect("a line").expect("of text"), "ready");
            let mut connect = Command::new(own);
            let mut connect =
                connect.args(["connect", socket]).stdout(Stdio::piped()).spawn().expect("itself");
            let output = connect.stdout.take().expect("piped");
            connect.wait().expect("it ends");
            let answer = BufReader::new(output).lines().next().expect("a line").expect("of text");
            // The end of process 1 ends all others of the namespace.
            writeln!(std::io::stdout(), "{answer}").expect("the test reads it");
        }
        [step, socket] if step == "connect" => {
            let offer = register(socket, &RawSpec::new("reuse").register).expect("a welcome");
            let number = std::process::id().to_string();
            let mut send = Command::new(own);
            send.args(["send", &number]).stdin(Stdio::from(offer.0)).spawn().expect("itself");
        }
        [step, number] if step == "send" => send_stranger(number.parse().expect("a number")),
        other => panic!("{other:?}"),
    }
}

fn send_stranger(number: u32) {
    until("the process that connected is gone", || !Path::new(&format!("/proc/{number}")).exists());
    for _ in 0..STRANGERS {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string()).expect("root may");
        let mut stranger = Command::new("sleep").arg("1000").spawn().expect("sleep");
        if stranger.id() == number {
            let kthreads = ClientMessage::Kthreads { tids: vec![number as i32] };
            send(stdin(), &kthreads, &[]).expect("the connection is open");
            let answer = receive::<ServerMessage>(stdin()).expect("an answer").0;
            writeln!(std::io::stdout(), "{answer:?}").expect("process 1 reads it");
            return;
        }
        stranger.kill().and_then(|()| stranger.wait()).expect("it ends");
    }
    panic!("no stranger got the number {number}");
}
