//! Captures: copies of frames for watchers, without making the polling thread wait.
//!
//! Owns the rings to watchers ([`Tap`]) and the choice of frames. A watcher gets a memory file with
//! one ring; the switch copies the beginning of each chosen frame into it and never waits: if the
//! ring is full, the frame is counted as dropped. Without a watcher the switch pays one predicted
//! branch for each place a frame passes. The watcher handles files, their rotation and their
//! limits.
//!
//! | the watcher | what happens |
//! |---|---|
//! | is slow | its ring fills, frames are dropped and counted |
//! | dies or hangs up | the control thread has the tap taken out |
//! | writes an impossible position | the tap is taken out and its connection closed |

use tailwater_sched::RuntimeId;
use tailwater_shm::control::{CaptureRequest, Direction};
use tailwater_shm::layout::{Region, RegionSpec};
use tailwater_shm::ring::{MAX_FRAME, MIN_FRAME, Producer, ReserveError};
use tailwater_shm::{Clock, clock};

use rustix::fd::OwnedFd;
use std::sync::Arc;

use crate::stats::CaptureStats;

/// Maximum number of simultaneous captures.
pub(crate) const MAX_CAPTURES: usize = 4;

/// Where a frame is captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    FromRuntime(RuntimeId),
    ToRuntime(RuntimeId),
    FromPort(u16),
    ToPort(u16),
}

/// Which frames are captured.
#[derive(Debug)]
struct Filter {
    /// A name, and the runtime that has it now.
    runtime: Option<(String, Option<RuntimeId>)>,
    port: Option<u16>,
    direction: Option<Direction>,
}

impl Filter {
    /// Returns whether frames at `point` are captured. Without names each frame is captured once,
    /// where it enters the switch; with a direction, at the runtimes.
    fn takes(&self, point: Point) -> bool {
        let anything = self.runtime.is_none() && self.port.is_none();
        let runtime = |id| self.runtime.as_ref().is_some_and(|(_, now)| *now == Some(id));
        match (point, self.direction) {
            (Point::FromRuntime(id), None | Some(Direction::Tx)) => anything || runtime(id),
            (Point::ToRuntime(id), None) => runtime(id),
            (Point::ToRuntime(id), Some(Direction::Rx)) => anything || runtime(id),
            (Point::FromPort(number), None) => anything || self.port == Some(number),
            (Point::FromPort(number), Some(Direction::Rx))
            | (Point::ToPort(number), None | Some(Direction::Tx)) => self.port == Some(number),
            (Point::FromRuntime(_) | Point::ToPort(_), Some(Direction::Rx))
            | (Point::ToRuntime(_) | Point::FromPort(_), Some(Direction::Tx)) => false,
        }
    }
}

/// One watcher's ring.
#[derive(Debug)]
pub(crate) struct Tap {
    /// Number of the watcher's connection.
    pub(crate) id: u64,
    filter: Filter,
    snap: usize,
    ring: Producer,
    broken: bool,
    pub(crate) stats: Arc<CaptureStats>,
}

impl Tap {
    /// Returns a ring as `request` asks for, and its memory file for the watcher. `port` is the
    /// number of the port that it names.
    ///
    /// # Errors
    /// A message, if the sizes are out of range or there is no memory.
    pub(crate) fn new(
        id: u64,
        request: &CaptureRequest,
        port: Option<u16>,
        clock: &Clock,
    ) -> Result<(Box<Self>, OwnedFd), String> {
        let snap = usize::from(request.snap);
        if !(MIN_FRAME..=MAX_FRAME).contains(&snap) {
            return Err(format!("a snap length of {snap} bytes; {MIN_FRAME} to {MAX_FRAME} are allowed"));
        }
        let text = |error: &dyn core::fmt::Display| error.to_string();
        let spec = RegionSpec::new(1, request.ring_bytes).map_err(|e| text(&e))?;
        let (_, ends, file) = Region::create("tailwater-capture", spec, clock.hz()).map_err(|e| text(&e))?;
        let tap = Self {
            id,
            filter: Filter {
                runtime: request.runtime.clone().map(|name| (name, None)),
                port,
                direction: request.direction,
            },
            snap,
            ring: ends.into_iter().next().expect("a region of one kthread").ingress,
            broken: false,
            stats: Arc::new(CaptureStats::new(id, request.clone())),
        };
        Ok((Box::new(tap), file))
    }

    fn push(&mut self, frame: &[u8]) {
        let kept = frame.len().min(self.snap);
        if kept < MIN_FRAME || self.broken {
            return;
        }
        match self.ring.reserve(kept) {
            Ok(mut slot) => {
                slot.write(0, &frame[..kept]);
                // The record's field for the flow hash carries the full length of the frame.
                slot.commit(frame.len() as u32, 0, clock::now());
                self.stats.captured.add(1);
            }
            Err(ReserveError::Full) => self.stats.dropped.add(1),
            Err(ReserveError::Lie(_)) => self.broken = true,
        }
    }

    fn rename(&mut self, name: &str, to: Option<RuntimeId>) {
        if let Some((wanted, now)) = &mut self.filter.runtime
            && wanted == name
        {
            *now = to;
        }
    }
}

/// All watchers.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    // Boxed because they cross threads; four at most.
    #[allow(clippy::vec_box, reason = "they come and go as boxes")]
    taps: Vec<Box<Tap>>,
}

impl Captures {
    /// Returns whether a watcher is connected.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        !self.taps.is_empty()
    }

    /// Returns whether a watcher's filter takes frames that pass `point`.
    pub(crate) fn wants(&self, point: Point) -> bool {
        self.taps.iter().any(|tap| tap.filter.takes(point))
    }

    /// Copies a frame to the watchers whose filters take it.
    #[cold]
    pub(crate) fn push(&mut self, point: Point, frame: &[u8]) {
        self.taps.iter_mut().filter(|tap| tap.filter.takes(point)).for_each(|tap| tap.push(frame));
    }

    /// Starts a capture. `runtimes` are those that are registered now.
    pub(crate) fn add<'a>(
        &mut self,
        mut tap: Box<Tap>,
        runtimes: impl Iterator<Item = (&'a str, RuntimeId)>,
    ) {
        runtimes.for_each(|(name, id)| tap.rename(name, Some(id)));
        self.taps.push(tap);
    }

    /// Ends a capture.
    pub(crate) fn remove(&mut self, id: u64) -> Option<Box<Tap>> {
        let index = self.taps.iter().position(|tap| tap.id == id)?;
        Some(self.taps.swap_remove(index))
    }

    /// Takes out a capture whose watcher wrote an impossible position.
    pub(crate) fn take_broken(&mut self) -> Option<Box<Tap>> {
        let index = self.taps.iter().position(|tap| tap.broken)?;
        Some(self.taps.swap_remove(index))
    }

    pub(crate) fn handle_attached(&mut self, name: &str, id: RuntimeId) {
        self.taps.iter_mut().for_each(|tap| tap.rename(name, Some(id)));
    }

    pub(crate) fn handle_detached(&mut self, id: RuntimeId) {
        for tap in &mut self.taps {
            if let Some((_, now)) = &mut tap.filter.runtime
                && *now == Some(id)
            {
                *now = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_shm::memory::Mapping;
    use tailwater_shm::ring::{Consumer, FrameBuffer};

    use crate::fixture::{INGRESS_TAIL, scribble};

    const A: RuntimeId = RuntimeId(1);
    const B: RuntimeId = RuntimeId(2);

    fn request() -> CaptureRequest {
        CaptureRequest { runtime: None, port: None, direction: None, snap: 100, ring_bytes: 1 << 15 }
    }

    fn tap(request: &CaptureRequest, port: Option<u16>) -> (Box<Tap>, OwnedFd) {
        Tap::new(7, request, port, &Clock::from_hz(1_000_000_000)).unwrap()
    }

    fn watch(file: &OwnedFd) -> Consumer {
        let (_, ends) = Region::attach(Mapping::new(file, "capture").unwrap()).unwrap();
        ends.into_iter().next().unwrap().ingress
    }

    const POINTS: [Point; 6] = [
        Point::FromRuntime(A),
        Point::ToRuntime(A),
        Point::FromRuntime(B),
        Point::ToRuntime(B),
        Point::FromPort(0),
        Point::ToPort(0),
    ];

    fn taken(runtime: bool, port: bool, direction: Option<Direction>) -> Vec<Point> {
        let filter = Filter {
            runtime: runtime.then(|| ("a".to_owned(), Some(A))),
            port: port.then_some(0),
            direction,
        };
        POINTS.into_iter().filter(|&point| filter.takes(point)).collect()
    }

    #[test]
    fn filters_take_each_frame_once_or_what_their_names_say() {
        use Point::{FromPort, FromRuntime, ToPort, ToRuntime};
        let (rx, tx) = (Some(Direction::Rx), Some(Direction::Tx));
        assert_eq!(taken(false, false, None), [FromRuntime(A), FromRuntime(B), FromPort(0)]);
        assert_eq!(taken(false, false, rx), [ToRuntime(A), ToRuntime(B)]);
        assert_eq!(taken(false, false, tx), [FromRuntime(A), FromRuntime(B)]);
        assert_eq!(taken(true, false, None), [FromRuntime(A), ToRuntime(A)]);
        assert_eq!(taken(true, false, rx), [ToRuntime(A)]);
        assert_eq!(taken(true, false, tx), [FromRuntime(A)]);
        assert_eq!(taken(false, true, None), [FromPort(0), ToPort(0)]);
        assert_eq!(taken(false, true, rx), [FromPort(0)]);
        assert_eq!(taken(false, true, tx), [ToPort(0)]);
    }

    #[test]
    fn a_runtime_is_followed_through_its_restarts() {
        let (tap, _file) = tap(&CaptureRequest { runtime: Some("a".to_owned()), ..request() }, None);
        let mut captures = Captures::default();
        captures.add(tap, [("a", A), ("b", B)].into_iter());
        assert!(captures.wants(Point::FromRuntime(A)));
        captures.handle_detached(A);
        assert!(!captures.wants(Point::FromRuntime(A)));
        captures.handle_attached("a", B);
        assert!(captures.wants(Point::FromRuntime(B)));
    }

    #[test]
    fn a_watcher_sees_cut_frames_with_their_length_and_a_slow_one_loses_some() {
        let (mut tap, file) = tap(&request(), None);
        tap.push(&[7; 1000]);
        tap.push(&[8; 60]);
        let (mut watcher, mut buffer) = (watch(&file), FrameBuffer::new());
        let first = watcher.peek().unwrap().unwrap();
        assert_eq!((first.hash(), &*first.copy_frame(&mut buffer)), (1000, &[7; 100][..]));
        first.advance();
        let second = watcher.peek().unwrap().unwrap();
        assert_eq!((second.hash(), &*second.copy_frame(&mut buffer)), (60, &[8; 60][..]));
        for _ in 0..1000 {
            tap.push(&[9; 1000]);
        }
        assert_eq!(tap.stats.captured.get() + tap.stats.dropped.get(), 1002);
        assert!(tap.stats.dropped.get() > 500, "{}", tap.stats.dropped.get());
    }

    #[test]
    fn a_watcher_that_lies_is_taken_out() {
        let (tap, file) = tap(&request(), None);
        // A position ahead of every record written.
        scribble(&file, INGRESS_TAIL, u64::MAX / 2);
        let mut captures = Captures::default();
        captures.add(tap, core::iter::empty());
        for _ in 0..1000 {
            captures.push(Point::FromPort(0), &[1; 1000]);
        }
        assert_eq!(captures.take_broken().map(|tap| tap.id), Some(7));
        assert!(!captures.is_on());
    }
}
