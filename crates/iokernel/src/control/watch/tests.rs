use super::*;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// A polling thread as looks see it, and their times.
struct Scene {
    watch: StallWatch,
    sight: Sight,
}

impl Scene {
    fn new(heartbeat: Option<Heartbeat>) -> Self {
        let at = Instant::now();
        let sight = Sight { at, iterations: 7, stage: Stage::Ports, ran: Some(Duration::ZERO), state: 'R' };
        let mut scene = Self { watch: StallWatch::new(rustix::thread::gettid(), heartbeat, at), sight };
        assert_eq!(scene.watch.look(sight), None);
        scene
    }

    /// A look `after_ms` after the last one, before which the thread has run for `ran_ms`.
    fn look(&mut self, after_ms: u64, ran_ms: u64, change: impl FnOnce(&mut Sight)) -> Option<Finding> {
        self.sight.at += Duration::from_millis(after_ms);
        self.sight.ran = self.sight.ran.map(|ran| ran + Duration::from_millis(ran_ms));
        change(&mut self.sight);
        self.watch.look(self.sight)
    }
}

fn health(finding: Option<Finding>) -> Option<Health> {
    finding.map(|finding| finding.health)
}

#[test]
fn a_thread_that_runs_or_waits_in_the_kernel_without_an_iteration_stalls_and_is_counted_once() {
    let mut running = Scene::new(None);
    let found = running.look(100, 90, |_| ()).unwrap();
    assert_eq!((found.health, found.time, found.logged), (Health::Stalled, LOOK, true));
    assert_eq!(running.look(100, 90, |_| ()), None, "the same stall");
    assert_eq!(running.look(100, 90, |s| s.iterations += 1), None);
    assert_eq!(health(running.look(100, 90, |_| ())), Some(Health::Stalled), "another one");
    for state in ['S', 'D'] {
        let mut waiting = Scene::new(None);
        assert_eq!(health(waiting.look(100, 0, |s| s.state = state)), Some(Health::Stalled));
        let mut unaccounted = Scene::new(None);
        unaccounted.sight.ran = None;
        assert_eq!(health(unaccounted.look(100, 0, |s| s.state = state)), Some(Health::Stalled));
    }
}

#[test]
fn a_thread_that_rests_or_ends_iterations_does_not_stall() {
    for stage in [Stage::Asleep, Stage::Slice, Stage::Outside] {
        let mut scene = Scene::new(None);
        assert_eq!(scene.look(500, 0, |s| (s.stage, s.state) = (stage, 'S')), None);
    }
    let mut scene = Scene::new(None);
    assert_eq!(scene.look(500, 400, |s| s.iterations += 1), None);
    assert_eq!(scene.look(99, 99, |_| ()), None, "too early to say");
    assert_eq!(health(scene.look(1, 1, |_| ())), Some(Health::Stalled));
}

#[test]
fn a_thread_that_linux_does_not_run_starves_until_it_runs_and_stalls() {
    let mut scene = Scene::new(None);
    // As after a signal that stops the process, too.
    assert_eq!(health(scene.look(10_000, 5, |_| ())), Some(Health::Starved));
    assert_eq!(scene.look(100, 5, |s| s.state = 'T'), None);
    assert_eq!(health(scene.look(100, 50, |_| ())), Some(Health::Stalled));
    assert_eq!(scene.look(100, 0, |_| ()), None);
}

#[test]
fn the_log_has_a_few_lines_about_many_stalls() {
    let mut scene = Scene::new(None);
    let mut lines = 0;
    for _ in 0..50 {
        lines += u32::from(scene.look(100, 90, |_| ()).expect("a stall").logged);
        scene.look(100, 90, |s| s.iterations += 1);
    }
    // The next after a minute.
    assert_eq!(lines, 3);
}

#[test]
fn a_sign_of_life_is_given_when_due_and_only_if_iterations_end() {
    let beats = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&beats);
    let beat = move || {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    let heartbeat = Heartbeat { interval: Duration::from_secs(1), beat: Box::new(beat) };
    let mut scene = Scene::new(Some(heartbeat));
    let mut beaten = |times: u32, moved: bool| {
        for _ in 0..times {
            scene.look(100, 90, |s| s.iterations += u64::from(moved));
        }
        beats.load(Ordering::Relaxed)
    };
    assert_eq!(beaten(9, true), 1, "the first at once");
    assert_eq!(beaten(1, true), 2);
    assert_eq!(beaten(100, false), 2);
    assert_eq!(beaten(1, true), 3);
    assert_eq!(beaten(30, true), 6);
}

#[test]
fn looks_divide_the_interval_of_signs_of_life() {
    let interval = |ms| {
        let heartbeat = Heartbeat { interval: Duration::from_millis(ms), beat: Box::new(|| ()) };
        StallWatch::new(rustix::thread::gettid(), Some(heartbeat), Instant::now()).interval()
    };
    assert_eq!(interval(101), Duration::from_micros(50_500), "not 100 ms, which would make it 200");
    assert_eq!(interval(250) * 3, Duration::from_nanos(250_000_002), "rounded up");
    assert_eq!([40, 100, 1_000].map(interval), [40, 100, 100].map(Duration::from_millis));
}

#[test]
fn a_stage_that_is_published_is_read_again() {
    let progress = Progress::default();
    for stage in Stage::ALL {
        progress.set(stage);
        assert_eq!(progress.get(), stage);
    }
}
