//! Sockets for futures.
//!
//! They wrap the blocking sockets of [`net`](crate::net), from which they are made by `From` and
//! which `into_inner` returns; the settings that make those return early (`set_nonblocking`,
//! timeouts) do not apply. An operation that has to wait leaves its waker in the socket.
//!
//! # Examples
//! ```standalone_crate
//! use tailwater::future::net::{TcpListener, TcpStream};
//! use tailwater::future::{block_on, spawn};
//!
//! #[tailwater::main]
//! fn main() -> std::io::Result<()> {
//!     let listener = TcpListener::bind("127.0.0.1:0")?;
//!     let address = listener.local_addr()?;
//!     let server = spawn(async move {
//!         let (mut stream, _) = listener.accept().await?;
//!         let mut buf = [0; 100];
//!         let len = stream.read(&mut buf).await?;
//!         stream.write_all(&buf[..len]).await
//!     });
//!     block_on(async {
//!         let mut stream = TcpStream::connect(address).await?;
//!         stream.write_all(b"there and back").await?;
//!         let mut buf = [0; 100];
//!         let len = stream.read(&mut buf).await?;
//!         assert_eq!(&buf[..len], b"there and back");
//!         server.await.unwrap()
//!     })
//! }
//! ```

#[cfg(feature = "tcp")]
mod io;
#[cfg(feature = "tcp")]
mod listener;
#[cfg(feature = "tcp")]
mod stream;
mod udp;

#[cfg(feature = "tcp")]
pub use listener::TcpListener;
#[cfg(feature = "tcp")]
pub use stream::{ReadHalf, TcpStream, WriteHalf};
pub use udp::UdpSocket;
