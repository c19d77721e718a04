//! The programs in a virtual machine in this process, without privileges, beside a model of what
//! they add up. In the kernel they run in the tests of the module above.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use proptest::prelude::*;

use super::Interrupt::{Hard, Soft};
use super::*;
use tailwater_testkit::machine::integer_at;

const MAPS: Maps = Maps { cores: 1, threads: 2, strangers: 3 };
/// Cores of the machine, and places in each hash table.
const CORES: usize = 2;
const PLACES: usize = 8;
const KTHREADS: [u32; 2] = [101, 102];

/// A hash table whose values lie where the programs may write.
#[derive(Default)]
struct Table {
    keys: Vec<u128>,
    values: Vec<AtomicU64>,
    /// Integers of a value.
    width: usize,
}

impl Table {
    fn new(width: usize) -> Self {
        Self { keys: Vec::new(), values: zeros(PLACES * width), width }
    }

    fn address(&self, key: u128) -> u64 {
        let place = self.keys.iter().position(|&known| known == key);
        place.map_or(0, |place| address(&self.values[place * self.width]))
    }
}

/// The machine around a program.
#[derive(Default)]
struct World {
    core: u32,
    now: u64,
    tid: u32,
    cores: Vec<AtomicU64>,
    threads: Table,
    strangers: Table,
    /// Nanoseconds of an interrupt that begins when the next program has read the time.
    interrupt: Option<u64>,
}

const WORDS: usize = size_of::<Record>() / 8;

thread_local! { static WORLD: RefCell<World> = RefCell::default(); }

fn zeros(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

fn address(word: &AtomicU64) -> u64 {
    word.as_ptr().expose_provenance() as u64
}

fn look_up(map: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    WORLD.with_borrow(|world| match map {
        1 => {
            let core = u32::from_le_bytes(integer_at(key)) as usize;
            world.cores.get(core * WORDS).map_or(0, address)
        }
        2 => world.threads.address(u32::from_le_bytes(integer_at(key)).into()),
        3 => world.strangers.address(u128::from_le_bytes(integer_at(key))),
        other => panic!("map {other}"),
    })
}

fn update(map: u64, key: u64, value: u64, flags: u64, _: u64) -> u64 {
    assert_eq!((map, flags), (3, 1));
    let key = u128::from_le_bytes(integer_at(key));
    assert_eq!(integer_at::<{ size_of::<Strange>() }>(value), [0; size_of::<Strange>()]);
    WORLD.with_borrow_mut(|world| {
        let keys = &mut world.strangers.keys;
        assert!(!keys.contains(&key));
        if keys.len() == PLACES {
            return -7i64 as u64;
        }
        keys.push(key);
        0
    })
}

/// Writes the current thread's name, `t` and its number, behind which there are zeros.
fn command(to: u64, len: u64, _: u64, _: u64, _: u64) -> u64 {
    assert_eq!(len, COMMAND_LEN as u64);
    WORLD.with_borrow(|world| {
        let words = &world.strangers.values;
        let place = words.iter().position(|word| address(word) == to).expect("a value of the map");
        words[place].store(name_of(world.tid), Relaxed);
        words[place + 1].store(0, Relaxed);
    });
    0
}

/// First word of the name of a thread.
fn name_of(tid: u32) -> u64 {
    u64::from(b't') | u64::from(b'0' + tid as u8 % 10) << 8
}

/// Returns the time, and has the interrupt happen that is due then.
fn nanoseconds(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    let (now, interrupt) = WORLD.with_borrow_mut(|world| (world.now, world.interrupt.take()));
    if let Some(ns) = interrupt {
        happen(1, Event::Enter(Interrupt::Hard));
        happen(ns, Event::Leave(Interrupt::Hard));
    }
    now
}

/// What a program may call.
type Helper = fn(u64, u64, u64, u64, u64) -> u64;

/// Runs a program with these arguments of its tracepoint; returns what it does.
fn run(code: &[u64], arguments: [u64; 4]) -> u64 {
    let bytes: Vec<u8> = code.iter().flat_map(|instruction| instruction.to_le_bytes()).collect();
    let mut machine = rbpf::EbpfVmRaw::new(Some(&bytes)).expect("the program is well formed");
    let helpers: [(u32, Helper); 6] = [
        (COMMAND, command),
        (LOOKUP, look_up),
        (UPDATE, update),
        (NANOSECONDS, nanoseconds),
        (CORE, |_, _, _, _, _| WORLD.with_borrow(|world| world.core.into())),
        (THREAD, |_, _, _, _, _| WORLD.with_borrow(|world| 77 << 32 | u64::from(world.tid))),
    ];
    for (number, helper) in helpers {
        machine.register_helper(number, helper).unwrap();
    }
    WORLD.with_borrow(|world| {
        for words in [&world.cores, &world.threads.values, &world.strangers.values] {
            let from = address(&words[0]);
            machine.register_allowed_memory(from..from + 8 * words.len() as u64);
        }
    });
    let mut context = arguments.map(u64::to_le_bytes).concat();
    machine.execute_program(&mut context).unwrap()
}

fn begin() {
    let world = World {
        cores: zeros(CORES * WORDS),
        threads: Table { keys: KTHREADS.map(u128::from).to_vec(), ..Table::new(1) },
        strangers: Table::new(size_of::<Strange>() / 8),
        now: 1_000,
        ..World::default()
    };
    world.cores[Field::Since as usize].store(1_000, Relaxed);
    WORLD.set(world);
}

/// What happens next on core 0, after some nanoseconds.
#[derive(Debug, Clone, Copy)]
enum Event {
    Enter(Interrupt),
    Leave(Interrupt),
    /// The current thread is switched out for this one, and could run on or not.
    Switch {
        to: u32,
        preempted: bool,
        state: u64,
    },
    /// The reader looks.
    Look,
}

/// Has it happen; returns what the program does.
fn happen(after: u64, event: Event) -> u64 {
    WORLD.with_borrow_mut(|world| world.now += after);
    match event {
        Event::Enter(kind) => run(&enter(MAPS, kind), [0; 4]),
        Event::Leave(kind) => run(&leave(MAPS, kind), [0; 4]),
        Event::Switch { to, preempted, state } => {
            let returned = run(&switch(MAPS), [preempted.into(), 0xdead, 0xbeef, state]);
            WORLD.with_borrow_mut(|world| world.tid = to);
            returned
        }
        Event::Look => run(&switch(MAPS), LOOK),
    }
}

fn field(field: Field) -> u64 {
    WORLD.with_borrow(|world| world.cores[field as usize].load(Relaxed))
}

fn by_moment(field: Field) -> [u64; 2] {
    WORLD.with_borrow(|world| [0, 1].map(|moment| world.cores[field as usize + moment].load(Relaxed)))
}

/// Nanoseconds of each stranger by the kthread that waited meanwhile, 0 for none. Their names are
/// checked.
fn by_waiter() -> BTreeMap<(u32, u32), u64> {
    WORLD.with_borrow(|world| {
        let Table { keys, values, width } = &world.strangers;
        let value = |(at, &key): (usize, &u128)| {
            let words: Vec<u64> = values[width * at..][..*width].iter().map(|w| w.load(Relaxed)).collect();
            let (tid, waiter) = (key as u32, (key >> 64) as u32);
            assert_eq!(words[1..], [77 << 32 | u64::from(tid), name_of(tid), 0]);
            ((tid, waiter), words[0])
        };
        keys.iter().enumerate().map(value).collect()
    })
}

/// The same by [`Moment`].
fn strangers() -> BTreeMap<u32, [u64; 2]> {
    let mut all = BTreeMap::<u32, [u64; 2]>::new();
    for ((tid, waiter), ns) in by_waiter() {
        all.entry(tid).or_default()[usize::from(waiter != 0)] += ns;
    }
    all
}

/// Switches to a thread, from one that could run on.
fn yields(to: u32) -> Event {
    Event::Switch { to, preempted: false, state: 0 }
}

/// Switches to a thread, from one that waits for something.
fn sleeps(to: u32) -> Event {
    Event::Switch { to, preempted: false, state: 1 }
}

#[test]
fn time_goes_to_the_thread_that_is_switched_out() {
    begin();
    happen(10, sleeps(101));
    happen(200, sleeps(7));
    happen(3_000, sleeps(0));
    happen(40_000, sleeps(7));
    happen(500_000, yields(102));
    assert_eq!((field(Field::Idle), field(Field::Kthreads)), (40_010, 200));
    assert_eq!(strangers(), BTreeMap::from([(7, [503_000, 0])]));
}

#[test]
fn a_stranger_takes_the_core_from_a_kthread_that_could_run_on() {
    begin();
    happen(1, sleeps(101));
    // It is preempted, and in a state that would have it sleep.
    happen(2, Event::Switch { to: 7, preempted: true, state: 1 });
    happen(10, sleeps(102));
    happen(3, sleeps(7));
    assert_eq!(strangers()[&7], [0, 10]);
    // The other kthread sleeps, this one still waits.
    happen(100, sleeps(101));
    happen(4, sleeps(7));
    happen(1_000, sleeps(0));
    assert_eq!((strangers()[&7], field(Field::Kthreads)), ([1_000, 110], 9));
    assert_eq!(by_waiter(), BTreeMap::from([((7, 0), 1_000), ((7, 101), 110)]));
}

#[test]
fn a_kthread_that_waits_on_another_core_does_not_wait_here() {
    begin();
    WORLD.with_borrow_mut(|world| world.tid = 101);
    happen(1, yields(7));
    WORLD.with_borrow(|world| world.threads.values[0].store(2, Relaxed));
    happen(10, sleeps(0));
    assert_eq!(strangers()[&7], [10, 0]);
}

#[test]
fn an_interrupt_within_a_soft_one_counts_once() {
    begin();
    happen(5, sleeps(101));
    happen(10, Event::Enter(Soft));
    happen(100, Event::Enter(Hard));
    happen(1_000, Event::Leave(Hard));
    happen(10_000, Event::Leave(Soft));
    happen(20, sleeps(7));
    assert_eq!((field(Field::Kthreads), by_moment(Field::Interrupts)), (30, [0, 11_100]));
    // One whose beginning was not seen, and one whose end was not.
    happen(3, Event::Leave(Hard));
    happen(4, Event::Enter(Hard));
    happen(500, sleeps(0));
    assert_eq!(
        (strangers()[&7], by_moment(Field::Interrupts), field(Field::Inside)),
        ([7, 0], [500, 11_100], 0)
    );
}

#[test]
fn an_end_that_was_missed_costs_one_interval() {
    for (missed, end) in [
        (Hard, [Event::Enter(Hard), Event::Leave(Hard)]),
        (Soft, [Event::Enter(Soft), Event::Leave(Soft)]),
        // It interrupts no hard interrupt.
        (Hard, [Event::Enter(Soft), Event::Leave(Soft)]),
    ] {
        begin();
        happen(5, sleeps(101));
        happen(10, Event::Enter(missed));
        happen(100, end[0]);
        happen(1_000, end[1]);
        happen(20_000, sleeps(0));
        let times = (field(Field::Kthreads), by_moment(Field::Interrupts));
        assert_eq!(times, (20_010, [0, 1_100]), "{missed:?} {end:?}");
    }
}

#[test]
fn an_interrupt_in_the_middle_of_a_program_is_entered_nowhere() {
    for (event, inside) in [(Event::Enter(Soft), 1), (Event::Leave(Soft), 0), (Event::Look, 0)] {
        begin();
        happen(5, sleeps(101));
        WORLD.with_borrow_mut(|world| world.interrupt = Some(1_000));
        happen(20, event);
        let record = [Field::Since, Field::Inside, Field::Busy].map(field);
        assert_eq!(record, [1_025, inside, 0], "{event:?}");
        happen(300, Event::Look);
        let times = (field(Field::Kthreads), by_moment(Field::Interrupts)[1]);
        assert_eq!(times, if inside == 1 { (20, 1_301) } else { (1_321, 0) }, "{event:?}");
    }
}

#[test]
fn a_look_ends_no_interrupt_and_is_refused_in_the_middle_of_a_program() {
    begin();
    happen(5, sleeps(101));
    happen(10, Event::Enter(Soft));
    assert_eq!(happen(100, Event::Look), 0);
    assert_eq!((field(Field::Kthreads), by_moment(Field::Interrupts)), (10, [0, 100]));
    happen(1_000, Event::Leave(Soft));
    assert_eq!(happen(20, Event::Look), 0);
    assert_eq!((field(Field::Kthreads), by_moment(Field::Interrupts)), (30, [0, 1_100]));
    WORLD.with_borrow(|world| world.cores[Field::Busy as usize].store(1, Relaxed));
    assert_eq!(happen(1, Event::Look), u64::from(FOUND_BUSY));
    assert_eq!(field(Field::Kthreads), 30);
}

#[test]
fn a_core_that_is_not_watched_is_left_alone() {
    begin();
    WORLD.with_borrow_mut(|world| world.core = 1);
    for event in [Event::Enter(Hard), sleeps(7), Event::Leave(Hard), sleeps(101), Event::Look] {
        happen(10, event);
    }
    WORLD.with_borrow_mut(|world| world.core = CORES as u32);
    happen(10, Event::Enter(Hard));
    assert!(WORLD.with_borrow(|world| world.cores[WORDS..].iter().all(|word| word.load(Relaxed) == 0)));
    assert!(strangers().is_empty());
}

fn event() -> impl Strategy<Value = Event> {
    let thread = prop_oneof![Just(0), prop::sample::select(&KTHREADS), 1u32..8];
    let kind = || prop::sample::select(&[Soft, Hard]);
    prop_oneof![
        kind().prop_map(Event::Enter),
        kind().prop_map(Event::Leave),
        Just(Event::Look),
        (thread, any::<bool>(), 0..3u64).prop_map(|(to, preempted, state)| Event::Switch {
            to,
            preempted,
            state
        }),
    ]
}

/// Each event, and for how long the program that it runs is interrupted.
type Step = (u64, Event, Option<u64>);

proptest! {
    #[test]
    fn every_nanosecond_is_entered_once(
        steps in prop::collection::vec((0..1_000_000u64, event(), prop::option::of(0..1_000_000u64)), 0..60),
    ) {
        begin();
        let mut ran = BTreeMap::<u32, u64>::new();
        let (mut soft, mut hard, mut current, mut all, mut before) = (false, false, 0, 0, 0);
        let last: Step = (5, yields(0), None);
        for &(after, event, interrupt) in steps.iter().chain([&last]) {
            // An interrupt of the program before comes after what that has entered.
            let passed = before + after;
            all += passed;
            if !(soft || hard) || current == 0 {
                *ran.entry(current).or_default() += passed;
            }
            match event {
                Event::Enter(Soft) => (soft, hard) = (true, false),
                Event::Leave(Soft) => (soft, hard) = (false, false),
                Event::Enter(Hard) => hard = true,
                Event::Leave(Hard) => hard = false,
                Event::Switch { to, .. } => (soft, hard, current) = (false, false, to),
                Event::Look => {}
            }
            WORLD.with_borrow_mut(|world| world.interrupt = interrupt);
            happen(after, event);
            before = interrupt.map_or(0, |ns| ns + 1);
        }
        let of = |tid: u32| ran.get(&tid).copied().unwrap_or(0);
        prop_assert_eq!(field(Field::Idle), of(0));
        prop_assert_eq!(field(Field::Kthreads), KTHREADS.map(of).iter().sum::<u64>());
        let told = strangers();
        let untold = by_moment(Field::Untold).iter().sum::<u64>();
        let ran_by_strangers = (1..8).map(of).sum::<u64>();
        prop_assert_eq!(told.values().flatten().sum::<u64>() + untold, ran_by_strangers);
        // Only those that found no place are not told.
        prop_assert!(by_waiter().len() == PLACES || untold == 0);
        prop_assert!(told.iter().all(|(tid, sums)| sums.iter().sum::<u64>() <= of(*tid)));
        let entered = field(Field::Idle) + field(Field::Kthreads)
            + told.values().flatten().chain(&by_moment(Field::Interrupts)).chain(&by_moment(Field::Untold)).sum::<u64>();
        prop_assert_eq!(entered, all);
    }
}
