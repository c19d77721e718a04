//! The reading and writing traits of other crates, for streams and their halves.
//!
//! All have the same meaning: `poll_flush` does nothing, because written data is sent at once;
//! closing sends a FIN.

#[cfg(any(feature = "futures-io", feature = "tokio-io"))]
use super::{ReadHalf, WriteHalf};
#[cfg(any(feature = "futures-io", feature = "tokio-io", feature = "hyper"))]
use {
    super::TcpStream,
    core::pin::Pin,
    core::task::{Context, Poll},
    std::io::{self, IoSlice},
};

/// The methods that the writing traits have in common, for a half of a stream or, with the name of
/// the field, the stream; `$close` is what a trait calls the end of writing.
#[cfg(any(feature = "futures-io", feature = "tokio-io", feature = "hyper"))]
macro_rules! write_methods {
    ($close:ident $(, $half:ident)?) => {
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

        fn $close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(self.get_mut()$(.$half)?.close())
        }
    };
}

/// A buffered reading trait, for the half or, with the name of the field, the stream.
#[cfg(any(feature = "futures-io", feature = "tokio-io"))]
macro_rules! buffered_reads {
    ($bufread:path, $type:ty $(, $half:ident)?) => {
        impl $bufread for $type {
            fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
                self.get_mut()$(.$half)?.poll_fill_buf(context)
            }

            fn consume(self: Pin<&mut Self>, bytes: usize) {
                self.get_mut()$(.$half)?.consume(bytes);
            }
        }
    };
}

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

    reads!(ReadHalf);
    reads!(TcpStream, reader);
    buffered_reads!(futures_io::AsyncBufRead, ReadHalf);
    buffered_reads!(futures_io::AsyncBufRead, TcpStream, reader);

    impl futures_io::AsyncWrite for WriteHalf {
        write_methods!(poll_close);
    }

    impl futures_io::AsyncWrite for TcpStream {
        write_methods!(poll_close, writer);
    }
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

    reads!(ReadHalf);
    reads!(TcpStream, reader);
    buffered_reads!(tokio::io::AsyncBufRead, ReadHalf);
    buffered_reads!(tokio::io::AsyncBufRead, TcpStream, reader);

    impl AsyncWrite for WriteHalf {
        write_methods!(poll_shutdown);

        fn is_write_vectored(&self) -> bool {
            true
        }
    }

    impl AsyncWrite for TcpStream {
        write_methods!(poll_shutdown, writer);

        fn is_write_vectored(&self) -> bool {
            true
        }
    }
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
        write_methods!(poll_shutdown, writer);

        fn is_write_vectored(&self) -> bool {
            true
        }
    }
}
