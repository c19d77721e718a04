//! Listens with the socket that is its standard input, in its own name (unix(7): a client learns
//! the process that called listen(2)), writes a line, and then waits until it is killed.

use std::io::{Write, stdin, stdout};
use std::os::fd::AsFd;
use tailwater_shm::control::listen_instead;

fn main() {
    let socket = stdin().as_fd().try_clone_to_owned().expect("a descriptor");
    listen_instead(&socket).expect("a socket");
    writeln!(stdout(), "listens").expect("the test reads it");
    loop {
        std::thread::park();
    }
}
