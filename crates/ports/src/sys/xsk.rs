//! AF_XDP sockets: memory shared with the kernel, four rings, and the ownership of each chunk (the
//! kernel's af_xdp.rst).
//!
//! Owns [`Queue`], one socket on one queue of an interface. Its frame memory is cut into chunks,
//! each permanently for receiving or for sending; at every moment a chunk is owned by the kernel or
//! by us:
//!
//! | ring | written by | entry means |
//! |---|---|---|
//! | fill | us | this receive chunk is the kernel's |
//! | receive | kernel | this receive chunk is ours and holds a frame |
//! | send | us | this send chunk is the kernel's and holds a frame |
//! | completion | kernel | this send chunk is ours again |
//!
//! In each ring the producer's and the consumer's position have one writer each; the writer stores
//! with Release after it is done with the entries, the reader loads with Acquire before it reads
//! them; the partner of each access is in the kernel (`smp_store_release`, `smp_load_acquire` in
//! net/xdp/xsk_queue.h). The kernel is trusted not to be hostile, but its entries are checked
//! before use: a descriptor outside the receive chunks is counted and skipped, and a position that
//! is ahead by more than a ring counts as a full ring.

mod adopt;
mod ring;

use core::ffi::c_int;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::sync::Arc;
use tailwater_shm::last_error;
use tailwater_shm::memory::{self, Mapping, MemoryError};

use adopt::Known;
use ring::Ring;

/// Entries of each ring, and chunks of each direction, so that no ring can overflow.
pub(crate) const RING: u32 = 2048;
/// Bytes at the start of a receive chunk that the kernel reserves (`XDP_PACKET_HEADROOM`).
pub(crate) const HEADROOM: u32 = 256;
/// Maximum number of system calls per flush. In copy mode one call sends 32 frames (`TX_BATCH_SIZE`
/// in net/xdp/xsk.c).
const KICKS: usize = 8;

/// Why a queue could not be opened, by step.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("cannot make an AF_XDP socket: {0}")]
    Socket(#[source] Errno),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("cannot register frame memory: {0}")]
    Register(#[source] Errno),
    #[error("cannot set up the rings: {0}")]
    Rings(#[source] Errno),
}

/// The kernel's counters of one socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct KernelCounters {
    pub(crate) rx_dropped: u64,
    pub(crate) rx_invalid: u64,
    pub(crate) tx_invalid: u64,
    pub(crate) rx_ring_full: u64,
    pub(crate) fill_ring_empty: u64,
    pub(crate) tx_ring_empty: u64,
}

/// One socket on one queue. Fields are dropped in their order: rings, memory, socket.
pub(crate) struct Queue {
    receive: Ring<libc::xdp_desc>,
    send: Ring<libc::xdp_desc>,
    fill: Ring<u64>,
    completion: Ring<u64>,
    memory: Mapping,
    /// The file of `memory`.
    file: OwnedFd,
    chunk: u32,
    /// Send chunks that are ours.
    free: Vec<u64>,
    /// The send ring holds frames that the kernel may not have taken yet.
    pending: bool,
    /// Frames put on the send ring so far; a queue that was taken over begins with a ring of them.
    sent: u64,
    known: Known,
    /// Invalid descriptors in the kernel's rings.
    pub(crate) invalid: u64,
    /// The only strong reference; readers of the kernel's counters hold weak ones.
    socket: Arc<OwnedFd>,
}

impl Queue {
    /// Returns a socket, not yet bound, with frame memory of `chunk` bytes a frame, a power of two
    /// from 2048 to the page size.
    ///
    /// # Errors
    /// [`OpenError`] names the step that failed.
    pub(crate) fn open(chunk: u32) -> Result<Self, OpenError> {
        let socket = socket_with(
            AddressFamily::from_raw(libc::AF_XDP as u16),
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(OpenError::Socket)?;
        let len = frame_memory(chunk);
        let file = memory::create("tailwater-frames", len)?;
        let memory = Mapping::new(&file, "frame memory")?;
        // SAFETY: an all-zero xdp_umem_reg is a valid one: integers.
        let mut register: libc::xdp_umem_reg = unsafe { core::mem::zeroed() };
        register.addr = memory.base() as u64;
        register.len = len as u64;
        register.chunk_size = chunk;
        set(&socket, libc::XDP_UMEM_REG, &register).map_err(OpenError::Register)?;
        for ring in
            [libc::XDP_RX_RING, libc::XDP_TX_RING, libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING]
        {
            set(&socket, ring, &RING).map_err(OpenError::Rings)?;
        }
        let mut queue = Self::map(socket, memory, file, chunk)?;
        queue.free = queue.send_chunks().collect();
        (0..u64::from(RING)).for_each(|i| queue.fill.write(i * u64::from(chunk)));
        queue.fill.publish();
        Ok(queue)
    }

    fn map(socket: OwnedFd, memory: Mapping, file: OwnedFd, chunk: u32) -> Result<Self, OpenError> {
        // SAFETY: an all-zero xdp_mmap_offsets is a valid one: integers.
        let mut offsets: libc::xdp_mmap_offsets = unsafe { core::mem::zeroed() };
        get(&socket, libc::XDP_MMAP_OFFSETS, &mut offsets).map_err(OpenError::Rings)?;
        let rings = |at, offsets| Ring::map(&socket, at, offsets).map_err(OpenError::Rings);
        let addresses = |at, offsets| Ring::map(&socket, at, offsets).map_err(OpenError::Rings);
        Ok(Self {
            receive: rings(libc::XDP_PGOFF_RX_RING as u64, &offsets.rx)?,
            send: rings(libc::XDP_PGOFF_TX_RING as u64, &offsets.tx)?,
            fill: addresses(libc::XDP_UMEM_PGOFF_FILL_RING, &offsets.fr)?,
            completion: addresses(libc::XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr)?,
            memory,
            file,
            chunk,
            free: Vec::new(),
            pending: false,
            sent: 0,
            known: Known::All,
            invalid: 0,
            socket: Arc::new(socket),
        })
    }

    /// Returns the offsets of all send chunks.
    fn send_chunks(&self) -> impl Iterator<Item = u64> + use<> {
        let chunk = u64::from(self.chunk);
        (u64::from(RING)..2 * u64::from(RING)).map(move |i| i * chunk)
    }

    /// Binds the socket to queue `number` of interface `index`; `flags` are `XDP_*` of
    /// linux/if_xdp.h. May be retried after an error.
    ///
    /// # Errors
    /// [`Errno::BUSY`] while another socket has the queue or is being taken down,
    /// [`Errno::OPNOTSUPP`] if the driver does not support what the flags ask.
    pub(crate) fn bind(&self, index: u32, number: u32, flags: u16) -> Result<(), Errno> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: index,
            sxdp_queue_id: number,
            sxdp_shared_umem_fd: 0,
        };
        // SAFETY: the address is a sockaddr_xdp, passed with its size.
        let result = unsafe {
            libc::bind(
                self.socket.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_xdp>() as libc::socklen_t,
            )
        };
        if result == 0 { Ok(()) } else { Err(last_error()) }
    }

    /// Returns whether the driver reads and writes our memory directly.
    pub(crate) fn is_zero_copy(&self) -> bool {
        let mut options = libc::xdp_options { flags: 0 };
        get(&self.socket, libc::XDP_OPTIONS, &mut options).is_ok()
            && options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0
    }

    pub(crate) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Passes up to `budget` received frames to `take`, which returns whether it takes a further
    /// one, and returns their chunks to the kernel. Returns how many.
    #[inline]
    pub(crate) fn receive(&mut self, budget: usize, mut take: impl FnMut(&mut [u8]) -> bool) -> usize {
        if matches!(self.known, Known::Nothing) {
            self.take_up();
        }
        let readable = self.receive.readable().min(budget as u32);
        let (mut count, mut goes_on) = (0, true);
        while count < readable && goes_on {
            count += 1;
            let descriptor = self.receive.read();
            let Some((chunk, start)) = self.locate(&descriptor) else {
                self.invalid += 1;
                continue;
            };
            // SAFETY: `locate` checked that the range lies in one receive chunk, which is ours
            // until it is put on the fill ring below; `&mut self` keeps all other code of this
            // process away.
            goes_on = take(unsafe {
                core::slice::from_raw_parts_mut(self.memory.base().add(start), descriptor.len as usize)
            });
            self.fill.write(chunk);
        }
        if count > 0 {
            self.receive.release();
            self.fill.publish();
        }
        count as usize
    }

    /// Returns the chunk of a received frame and the frame's offset; `None` if the frame is not
    /// inside one receive chunk.
    #[inline(always)]
    fn locate(&self, descriptor: &libc::xdp_desc) -> Option<(u64, usize)> {
        let chunk = descriptor.addr & !u64::from(self.chunk - 1);
        let end = descriptor.addr.checked_add(descriptor.len.into())?;
        let sound = chunk < u64::from(RING) * u64::from(self.chunk) && end <= chunk + u64::from(self.chunk);
        sound.then_some((chunk, descriptor.addr as usize))
    }

    /// Puts a frame on the send ring; returns false if it is too long or the kernel owns all send
    /// chunks. The frame is not sent before [`flush`](Self::flush).
    #[inline]
    pub(crate) fn send(&mut self, frame: &[u8]) -> bool {
        self.send_with(frame, |_| ())
    }

    /// As [`send`](Self::send), after `translate` has changed the copy.
    #[inline(always)]
    pub(crate) fn send_with(&mut self, frame: &[u8], translate: impl FnOnce(&mut [u8])) -> bool {
        if frame.len() > self.chunk as usize {
            return false;
        }
        if self.free.is_empty() {
            self.reclaim();
        }
        let Some(addr) = self.free.pop() else { return false };
        // SAFETY: a chunk on `free` is ours and inside the memory, and the frame fits a chunk; a
        // frame of a caller's cannot overlap memory that only this queue hands out, and only
        // mutably borrowed.
        unsafe {
            let to = self.memory.base().add(addr as usize);
            core::ptr::copy_nonoverlapping(frame.as_ptr(), to, frame.len());
            // All its bytes were just written, and `&mut self` keeps all other code of this process
            // away.
            translate(core::slice::from_raw_parts_mut(to, frame.len()));
        }
        self.send.write(libc::xdp_desc { addr, len: frame.len() as u32, options: 0 });
        self.pending = true;
        self.sent += 1;
        true
    }

    /// Returns how many frames were put on the send ring so far, and how many of them the kernel
    /// had not sent at the last [`reclaim`](Self::reclaim).
    #[inline(always)]
    pub(crate) fn backlog(&self) -> (u64, u32) {
        (self.sent, RING - (self.free.len() as u32).min(RING))
    }

    /// Has a new queue count the frames that it is sent from `sent` on.
    pub(crate) fn count_from(&mut self, sent: u64) {
        self.sent = sent;
    }

    /// Takes back the chunks of sent frames.
    pub(crate) fn reclaim(&mut self) {
        if !matches!(self.known, Known::All) {
            return self.account_for_sends();
        }
        let sending = u64::from(RING) * u64::from(self.chunk)..2 * u64::from(RING) * u64::from(self.chunk);
        let completed = self.completion.readable();
        if completed == 0 {
            return;
        }
        for _ in 0..completed {
            let chunk = self.completion.read() & !u64::from(self.chunk - 1);
            if sending.contains(&chunk) && self.free.len() < RING as usize {
                self.free.push(chunk);
            } else {
                self.invalid += 1;
            }
        }
        self.completion.release();
    }

    /// Makes the kernel send what was put on the send ring.
    pub(crate) fn flush(&mut self) {
        self.send.publish();
        self.pending = self.send.needs_wakeup() && !self.kick();
        self.reclaim();
    }

    /// Returns whether frames were put on the send ring since the last flush, or the last flush
    /// left some.
    pub(crate) fn has_unsent(&self) -> bool {
        self.pending
    }

    /// Makes the kernel send; returns true if nothing is left to send.
    fn kick(&self) -> bool {
        for _ in 0..KICKS {
            // SAFETY: no buffer and no address; the call touches no memory of ours.
            let sent = unsafe {
                libc::sendto(
                    self.socket.as_raw_fd(),
                    core::ptr::null(),
                    0,
                    libc::MSG_DONTWAIT,
                    core::ptr::null(),
                    0,
                )
            };
            match if sent >= 0 { Ok(()) } else { Err(last_error()) } {
                // A batch was sent and the ring holds more.
                Err(Errno::AGAIN) => {}
                Ok(()) => return true,
                // Busy, no buffers: the device's queue is full. Other errors: the interface is
                // down, and may come back up.
                Err(_) => return false,
            }
        }
        false
    }

    /// Wakes the driver if it waits for receive chunks.
    #[inline(always)]
    pub(crate) fn wake_receiver(&self) {
        if self.fill.needs_wakeup() {
            // SAFETY: no buffer and no address; the call touches no memory of ours.
            unsafe {
                libc::recvfrom(
                    self.socket.as_raw_fd(),
                    core::ptr::null_mut(),
                    0,
                    libc::MSG_DONTWAIT,
                    core::ptr::null_mut(),
                    core::ptr::null_mut(),
                );
            }
        }
    }
}

/// Returns the length of the frame memory of a queue in bytes.
fn frame_memory(chunk: u32) -> usize {
    2 * RING as usize * chunk as usize
}

/// Returns the kernel's counters of a socket.
///
/// # Errors
/// The kernel's error.
pub(crate) fn counters(socket: impl AsFd) -> Result<KernelCounters, Errno> {
    // SAFETY: an all-zero xdp_statistics is a valid one: integers.
    let mut statistics: libc::xdp_statistics = unsafe { core::mem::zeroed() };
    get(socket, libc::XDP_STATISTICS, &mut statistics)?;
    Ok(KernelCounters {
        rx_dropped: statistics.rx_dropped,
        rx_invalid: statistics.rx_invalid_descs,
        tx_invalid: statistics.tx_invalid_descs,
        rx_ring_full: statistics.rx_ring_full,
        fill_ring_empty: statistics.rx_fill_ring_empty_descs,
        tx_ring_empty: statistics.tx_ring_empty_descs,
    })
}

fn set<T>(socket: &OwnedFd, option: c_int, value: &T) -> Result<(), Errno> {
    let (pointer, len) = (core::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: all callers pass the option's own structure, with its size.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, pointer, len) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

fn get<T>(socket: impl AsFd, option: c_int, value: &mut T) -> Result<(), Errno> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let pointer = core::ptr::from_mut(value).cast();
    // SAFETY: all callers pass the option's own structure, zeroed, with its size; the kernel writes
    // at most that.
    let result =
        unsafe { libc::getsockopt(socket.as_fd().as_raw_fd(), libc::SOL_XDP, option, pointer, &raw mut len) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> Option<Queue> {
        match Queue::open(2048) {
            Ok(queue) => Some(queue),
            Err(OpenError::Socket(error)) => {
                eprintln!("skipped: no AF_XDP socket can be made here ({error})");
                None
            }
            Err(OpenError::Register(error @ (Errno::NOBUFS | Errno::NOMEM))) => {
                eprintln!("skipped: too little locked memory ({error}); raise `ulimit -l`");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn descriptors_outside_the_receive_chunks_are_not_followed() {
        let Some(queue) = queue() else { return };
        let locate = |addr, len| queue.locate(&libc::xdp_desc { addr, len, options: 0 });
        assert_eq!(locate(256, 60), Some((0, 256)));
        assert_eq!(locate(2048 * 2047 + 256, 1792), Some((2048 * 2047, 2048 * 2047 + 256)));
        assert_eq!(locate(256, 1793), None, "runs over the end of its chunk");
        assert_eq!(locate(2048 * 2048 + 256, 60), None, "a send chunk");
        assert_eq!(locate(u64::MAX - 10, 60), None);
        assert_eq!(locate(u64::MAX - 10, 5), None);
    }

    #[test]
    fn a_queue_takes_no_more_frames_than_it_has_chunks() {
        let Some(mut queue) = queue() else { return };
        assert!(!queue.send(&[0; 2049]));
        let taken = (0..RING + 5).filter(|_| queue.send(&[0; 60])).count();
        assert_eq!(taken, RING as usize);
        // Not bound: nothing is sent and no chunk returns.
        queue.flush();
        assert!(!queue.send(&[0; 60]));
    }

    /// Completes sends as the kernel does: writes their chunks into the completion ring.
    fn complete(queue: &mut Queue, chunks: impl IntoIterator<Item = u64>) {
        let ring = &mut queue.completion;
        let ours = ring.position;
        ring.position = ring.written();
        chunks.into_iter().for_each(|chunk| ring.write(chunk));
        ring.publish();
        ring.position = ours;
    }

    /// Returns the chunks of the last `count` frames that were put on the send ring.
    fn last_sent(queue: &Queue, count: u32) -> Vec<u64> {
        queue.send.last(count).map(|descriptor| descriptor.addr).collect()
    }

    #[test]
    fn a_backlog_is_what_the_kernel_has_not_completed_when_it_was_last_recounted() {
        let Some(mut queue) = queue() else { return };
        assert_eq!(queue.backlog(), (0, 0));
        (0..600).for_each(|_| assert!(queue.send(&[0; 60])));
        assert_eq!(queue.backlog(), (600, 600));
        let sent = last_sent(&queue, 600);
        complete(&mut queue, sent[..590].iter().copied());
        assert_eq!(queue.backlog(), (600, 600), "for each frame no more than a look at a number");
        queue.reclaim();
        assert_eq!(queue.backlog(), (600, 10));
        // A frame that the kernel completes twice is not counted twice.
        complete(&mut queue, [sent[590], 0]);
        queue.reclaim();
        assert_eq!((queue.backlog(), queue.invalid), ((600, 9), 1), "a receive chunk");
    }

    #[test]
    fn a_queue_taken_over_with_open_sends_has_sent_as_many_frames_as_it_may_hold() {
        let Some(mut before) = queue() else { return };
        (0..300).for_each(|_| assert!(before.send(&[0; 60])));
        before.flush();
        let files = before.files().map(|file| file.try_clone_to_owned().unwrap());
        let [socket, file] = files;
        let mut queue = Queue::adopt(socket, file, 2048).unwrap();
        // None of its chunks are known to be ours before those of the process before are completed.
        queue.reclaim();
        let (sent, waiting) = queue.backlog();
        assert_eq!(waiting, RING);
        let completed = sent.checked_sub(waiting.into()).expect("more wait than were sent");
        let open = last_sent(&before, 300);
        complete(&mut queue, open);
        queue.reclaim();
        let (sent, waiting) = queue.backlog();
        assert_eq!(waiting, 0);
        assert!(sent > completed, "{sent} frames have left the queue, {completed} before");
    }
}
