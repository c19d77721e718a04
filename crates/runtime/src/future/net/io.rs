//! The reading and writing traits of other crates, for streams and their halves.
//!
//! All have the same meaning: `poll_flush` does nothing, because written data is sent at once;
//! closing sends a FIN.

#[cfg(any(feature = "futures-io", feature = "tokio-io", feature = "hyper"))]
use {
    super::{ReadHalf, TcpStream, WriteHalf},
    core::pin::Pin,
    core::task::{Context, Poll},
    std::io::{self, IoSlice},
};

#[cfg(feature = "futures-io")]
mod futures {
    use super::*;

    macro_rules! reads {
        ($type:ty $(, $half:ident)?) => {
            impl futures_io::AsyncRead for $type {
                fn poll_read(
                    self: Pin<&mut Self>,
                    context: &mut Context<'_>,
                    buf: &mut [u8],
                ) -> Poll<io::Result<usize>> {
                    self.get_mut()$(.$half)?.poll_read(context, buf)
                }
            }
        };
    }

    macro_rules! writes {
        ($type:ty $(, $half:ident)?) => {
            impl futures_io::AsyncWrite for $type {
                fn poll_write(
                    self: Pin<&mut Self>,
                    context: &mut Context<'_>,
                    data: &[u8],
                ) -> Poll<io::Result<usize>> {
                    self.get_mut()$(.$half)?.poll_write(context, data)
                }

                fn poll_write_vectored(
                    self: Pin<&mut Self>,
                    context: &mut Context<'_>,
                    bufs: &[IoSlice<'_>],
                ) -> Poll<io::Result<usize>> {
                    self.get_mut()$(.$half)?.poll_write_vectored(context, bufs)
                }

                fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                    Poll::Ready(Ok(()))
                }

                fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                    Poll::Ready(self.get_mut()$(.$half)?.close())
                }
            }
        };
    }

    reads!(ReadHalf);
    reads!(TcpStream, reader);
    writes!(WriteHalf);
    writes!(TcpStream, writer);
}

#[cfg(feature = "tokio-io")]
mod tokio_io {
    use super::*;
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    macro_rules! reads {
        ($type:ty $(, $half:ident)?) => {
            impl AsyncRead for $type {
                fn poll_read(
                    self: Pin<&mut Self>,
                    context: &mut Context<'_>,
                    buf: &mut ReadBuf<'_>,
                ) -> Poll<io::Result<()>> {
                    let free = buf.initialize_unfilled();
                    self.get_mut()$(.$half)?.poll_read(context, free).map_ok(|len| buf.advance(len))
                }
            }
        };
    }

    macro_rules! writes {
        ($type:ty $(, $half:ident)?) => {
            impl AsyncWrite for $type {
                fn poll_write(
                    self: Pin<&mut Self>,
                    context: &mut Context<'_>,
                    data: &[u8],
                ) -> Poll<io::Result<usize>> {
                    self.get_mut()$(.$half)?.poll_write(context, data)
                }

                fn poll_write_vectored(
                    self: Pin<&mut Self>,
                    context: &mut Context<'_>,
                    bufs: &[IoSlice<'_>],
                ) -> Poll<io::Result<usize>> {
                    self.get_mut()$(.$half)?.poll_write_vectored(context, bufs)
                }

                fn is_write_vectored(&self) -> bool {
                    true
                }

                fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                    Poll::Ready(Ok(()))
                }

                fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                    Poll::Ready(self.get_mut()$(.$half)?.close())
                }
            }
        };
    }

    reads!(ReadHalf);
    reads!(TcpStream, reader);
    writes!(WriteHalf);
    writes!(TcpStream, writer);
}

#[cfg(feature = "hyper")]
mod hyper_rt {
    use super::*;
    use hyper::rt::{Read, ReadBufCursor, Write};

    impl Read for TcpStream {
        fn poll_read(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            mut buf: ReadBufCursor<'_>,
        ) -> Poll<io::Result<()>> {
            // SAFETY: `poll_read_uninit` writes initialised bytes only.
            let free = unsafe { buf.as_mut() };
            self.get_mut().reader.poll_read_uninit(context, free).map_ok(|len| {
                // SAFETY: `poll_read_uninit` has initialised as many bytes.
                unsafe { buf.advance(len) };
            })
        }
    }

    impl Write for TcpStream {
        fn poll_write(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            data: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.get_mut().writer.poll_write(context, data)
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            self.get_mut().writer.poll_write_vectored(context, bufs)
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(self.get_mut().writer.close())
        }
    }
}
