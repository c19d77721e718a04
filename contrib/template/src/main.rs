//! A service that answers each line of a TCP client with the line in capitals.

use std::io::{self, BufRead, BufReader, Write};

use tailwater::net::{TcpListener, TcpStream};
use tailwater::thread;

#[tailwater::main]
fn main() -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7000")?;
    loop {
        let (stream, _) = listener.accept()?;
        thread::spawn(move || serve(stream));
    }
}

/// Answers one client until it closes.
fn serve(stream: TcpStream) -> io::Result<()> {
    let mut answers = stream.try_clone()?;
    for line in BufReader::new(stream).lines() {
        answers.write_all(format!("{}\n", line?.to_uppercase()).as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Shutdown;

    #[tailwater::test]
    fn a_line_comes_back_in_capitals() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut client = TcpStream::connect(listener.local_addr()?)?;
        let (stream, _) = listener.accept()?;
        let server = thread::spawn(move || serve(stream));
        client.write_all(b"hello\n")?;
        client.shutdown(Shutdown::Write)?;
        let lines: io::Result<Vec<String>> = BufReader::new(client).lines().collect();
        assert_eq!(lines?, ["HELLO"]);
        server.join().unwrap()
    }
}
