//! The bounds of the thesis's section 2.3 on the mechanism itself, for random programs of allocation, release and cycles, with
//! many owners, on one space and pool.

use std::sync::Mutex;

use larder_blocks::owners::{Figures, Origin, Owners, Ratio, Release, Sharing};
use larder_blocks::pool::{Pool, Run};
use larder_blocks::space::Space;
use larder_units::{Blocks, Bytes};

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n
    }
}

/// One step of a program, the same for every setting.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// An owner needs so many blocks.
    Take(usize, usize),
    /// The n-th used run is freed explicitly, by whomever.
    Free(usize),
    /// A cycle finds each used run dead with this probability in 256; the seed says which.
    Collect(usize, u64),
    /// Memory goes back until so many free blocks are kept.
    GiveBack(usize),
    /// k is so many thousandths from here on.
    Ratio(u32),
}

/// Programs in phases: in each, a few owners are busy, as in figure 2.1 (B).
fn program(seed: u64, owners: usize, lengths: &[usize], gives_back: bool) -> Vec<Step> {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut steps = Vec::new();
    for _ in 0..20 {
        let busy: Vec<usize> = (0..1 + random.below(3)).map(|_| random.below(owners)).collect();
        let explicit = random.below(3);
        for _ in 0..random.below(200) {
            steps.push(match random.below(8) {
                0..=4 => Step::Take(busy[random.below(busy.len())], lengths[random.below(lengths.len())]),
                _ if explicit > 0 => Step::Free(random.below(1 << 20)),
                _ => Step::Take(random.below(owners), lengths[0]),
            });
        }
        if explicit < 2 {
            steps.push(Step::Collect(random.below(257), random.below(1 << 30) as u64 | 1));
        }
        if gives_back && random.below(4) == 0 {
            steps.push(Step::GiveBack(random.below(50)));
        }
    }
    steps
}

/// What the program itself determines: u, u_i, and their maxima.
struct Uses {
    used: usize,
    most_used: usize,
    by_owner: Vec<usize>,
    most_by_owner: Vec<usize>,
}

impl Uses {
    fn add(&mut self, owner: usize, n: usize) {
        self.used += n;
        self.by_owner[owner] += n;
        self.most_used = self.most_used.max(self.used);
        self.most_by_owner[owner] = self.most_by_owner[owner].max(self.by_owner[owner]);
    }

    /// What all-local lists need (2.3).
    fn all_local(&self) -> usize {
        self.most_by_owner.iter().sum()
    }
}

struct Heap {
    space: Space,
    pool: Pool,
    owners: Box<Owners>,
    held: Vec<(usize, Run)>,
    uses: Uses,
    /// a when memory was last given back.
    kept: usize,
}

impl Heap {
    fn new(sharing: Sharing, k: Ratio, owners: usize) -> Self {
        let space = Space::new();
        space.reserve(Bytes::mib(512), true).expect("address space");
        let uses = Uses { used: 0, most_used: 0, by_owner: vec![0; owners], most_by_owner: vec![0; owners] };
        let heap = Self { space, pool: Pool::new(), owners: Box::default(), held: Vec::new(), uses, kept: 0 };
        heap.owners.set_sharing(sharing);
        heap.owners.set_ratio(k);
        heap
    }

    fn run_for(&self, owner: usize, n: usize) -> (Run, Origin) {
        let obtain = |n: Blocks| {
            let fresh = || Some(Run { first: self.space.take_fresh(n)?, blocks: n, zero: true });
            self.pool.take(&self.space, n).or_else(fresh)
        };
        let taken = self.owners.take(&self.space, &self.pool, (owner, owner), Blocks(n), |_| false, obtain);
        let (run, origin) = taken.expect("there is memory enough");
        assert_eq!(run.blocks, Blocks(n));
        (run, origin)
    }

    fn take(&mut self, owner: usize, n: usize) -> Origin {
        self.uses.add(owner, n);
        let (run, origin) = self.run_for(owner, n);
        self.held.push((owner, run));
        origin
    }

    fn free(&mut self, place: usize, release: Release) {
        let (owner, run) = self.held.swap_remove(place);
        self.uses.used -= run.blocks.0;
        self.uses.by_owner[owner] -= run.blocks.0;
        self.owners.give(&self.space, owner, run, release);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Take(owner, n) => drop(self.take(owner, n)),
            Step::Free(n) if !self.held.is_empty() => self.free(n % self.held.len(), Release::Explicit),
            Step::Free(_) => {}
            Step::Collect(dead, seed) => {
                self.owners.begin_sweep();
                let mut random = Random(seed);
                for place in (0..self.held.len()).rev() {
                    if random.below(256) < dead {
                        self.free(place, Release::Collected);
                    }
                }
                self.owners.survived();
                assert_eq!(self.owners.figures().living, self.uses.used, "everything that is used survived");
            }
            Step::Ratio(thousandths) => self.owners.set_ratio(Ratio::from_thousandths(thousandths)),
            Step::GiveBack(keep) => {
                if self.owners.give_back(&self.space, &self.pool, Blocks(keep)).0 > 0 {
                    assert!(self.owners.free().0 <= keep);
                    self.kept = self.owners.figures().consumed;
                    self.uses.most_used = self.uses.used;
                    self.uses.most_by_owner.clone_from(&self.uses.by_owner);
                } else {
                    assert!(self.owners.free().0 <= keep);
                }
            }
        }
        let f = self.owners.figures();
        assert_eq!((f.used, f.most_used), (self.uses.used, self.uses.most_used), "{step:?}");
        assert_eq!(f.most_used_by_owners, self.uses.all_local(), "{step:?}");
        assert_eq!(f.consumed, f.used + f.free, "every block is used or free: {step:?} {f:?}");
        assert!(f.living <= f.most_used && f.most_living <= f.most_used, "{step:?} {f:?}");
    }

    /// No block is in two hands, and none is lost.
    fn check_blocks(&self) {
        let all = self.space.frontier().0;
        let mut taken = vec![false; all];
        for (_, run) in &self.held {
            for block in &mut taken[run.first..run.first + run.blocks.0] {
                assert!(!std::mem::replace(block, true), "a block is held twice");
            }
        }
        let free = self.owners.free().0 + self.pool.resident().0 + self.pool.discarded().0;
        assert_eq!(self.uses.used + free, all);
    }
}

const SINGLE: &[usize] = &[1];
const MIXED: &[usize] = &[1, 1, 1, 4, 16];

/// Runs programs of one and of many owners.
fn for_programs(lengths: &[usize], gives_back: bool, mut run: impl FnMut(usize, &[Step])) {
    for owners in [1, 2, 8, 100] {
        for seed in 1..=12 {
            run(owners, &program(seed, owners, lengths, gives_back));
        }
    }
}

/// Runs one program, and `check` after each of its steps.
fn run(sharing: Sharing, k: Ratio, owners: usize, steps: &[Step], mut check: impl FnMut(&Heap, Figures)) {
    let mut heap = Heap::new(sharing, k, owners);
    for &step in steps {
        heap.step(step);
        check(&heap, heap.owners.figures());
    }
    heap.check_blocks();
}

#[test]
fn page_sharing_consumes_the_most_that_was_used_at_once() {
    for_programs(SINGLE, false, |owners, steps| {
        run(Sharing::PageShared, Ratio::ONE, owners, steps, |heap, f| assert_eq!(f.consumed, heap.uses.most_used));
    });
    for_programs(MIXED, false, |owners, steps| {
        run(Sharing::PageShared, Ratio::ONE, owners, steps, |heap, f| assert!(f.most_consumed <= heap.uses.most_used));
    });
}

#[test]
fn local_lists_consume_the_sum_of_what_each_used_at_most() {
    for_programs(SINGLE, false, |owners, steps| {
        run(Sharing::AllLocal, Ratio::ONE, owners, steps, |heap, f| {
            assert_eq!((f.consumed, f.remote), (heap.uses.all_local(), 0));
        });
    });
    for_programs(MIXED, false, |owners, steps| {
        run(Sharing::AllLocal, Ratio::ONE, owners, steps, |heap, f| assert!(f.most_consumed <= heap.uses.all_local()));
    });
}

#[test]
fn locality_aware_sharing_stays_below_both_bounds() {
    for thousandths in [1000, 1001, 1300, 1500, 2000, 4000, 100_000] {
        let k = Ratio::from_thousandths(thousandths);
        for lengths in [SINGLE, MIXED] {
            for_programs(lengths, false, |owners, steps| {
                run(Sharing::LocalityAware, k, owners, steps, |heap, f| {
                    let shared = k.times_rounded_up(Blocks(heap.uses.most_used)).0;
                    assert!(f.most_consumed <= shared, "k {k:?}: {f:?}");
                    assert!(f.most_consumed <= heap.uses.all_local(), "k {k:?}: {f:?}");
                });
            });
        }
    }
}

#[test]
fn the_ends_of_the_dial_are_page_sharing_and_local_lists() {
    for_programs(SINGLE, false, |owners, steps| {
        // Memory is freed explicitly from the beginning, and no cycle says otherwise, so that l is u.
        let frees = steps.iter().copied().filter(|step| !matches!(step, Step::Collect(..)));
        let steps: Vec<Step> = [Step::Take(0, 1), Step::Free(0)].into_iter().chain(frees).collect();
        run(Sharing::LocalityAware, Ratio::ONE, owners, &steps, |heap, f| assert_eq!(f.consumed, heap.uses.most_used));
        let k = Ratio::from_thousandths(owners as u32 * 1000);
        run(Sharing::LocalityAware, k, owners, &steps, |heap, f| {
            assert_eq!((f.consumed, f.remote), (heap.uses.all_local(), 0));
        });
    });
}

#[test]
fn bounds_hold_again_after_memory_was_given_back() {
    for thousandths in [1000, 1500, 4000] {
        let k = Ratio::from_thousandths(thousandths);
        for lengths in [SINGLE, MIXED] {
            for_programs(lengths, true, |owners, steps| {
                run(Sharing::LocalityAware, k, owners, steps, |heap, f| {
                    let shared = k.times_rounded_up(Blocks(heap.uses.most_used)).0;
                    assert!(f.consumed <= shared.max(heap.kept), "k {k:?} kept {}: {f:?}", heap.kept);
                    assert!(f.consumed <= heap.uses.all_local().max(heap.kept), "k {k:?} kept {}: {f:?}", heap.kept);
                });
            });
        }
    }
    for sharing in [Sharing::PageShared, Sharing::AllLocal] {
        for_programs(MIXED, true, |owners, steps| run(sharing, Ratio::ONE, owners, steps, |_, _| {}));
    }
}

#[test]
fn bounds_hold_while_the_ratio_is_regulated() {
    for lengths in [SINGLE, MIXED] {
        for_programs(lengths, true, |owners, steps| {
            // A ratio that goes up and down between the phases: what was granted under the largest of an era stays.
            let mut random = Random(steps.len() as u64 + 5);
            let moved = |step: &Step| match step {
                Step::Collect(..) => vec![*step, Step::Ratio(1000 + random.below(4000) as u32)],
                _ => vec![*step],
            };
            let steps: Vec<Step> = steps.iter().flat_map(moved).collect();
            let (mut largest, mut eras) = (Ratio::ONE, 0);
            run(Sharing::LocalityAware, Ratio::ONE, owners, &steps, |heap, f| {
                if f.eras != eras {
                    (largest, eras) = (heap.owners.ratio(), f.eras);
                }
                largest = largest.max(heap.owners.ratio());
                let shared = largest.times_rounded_up(Blocks(heap.uses.most_used)).0;
                assert!(f.consumed <= shared.max(heap.kept), "k {largest:?} kept {}: {f:?}", heap.kept);
                assert!(f.consumed <= heap.uses.all_local().max(heap.kept), "kept {}: {f:?}", heap.kept);
            });
        });
    }
}

#[test]
fn what_was_taken_since_a_cycle_did_not_survive_it() {
    let mut heap = Heap::new(Sharing::LocalityAware, Ratio::ONE, 2);
    (0..10).for_each(|_| heap.step(Step::Take(0, 1)));
    heap.owners.begin_sweep();
    heap.step(Step::Take(1, 1));
    heap.free(0, Release::Collected);
    let (run, _) = heap.run_for(1, 1);
    heap.owners.give(&heap.space, 1, run, Release::Unused);
    heap.owners.survived();
    let f = heap.owners.figures();
    assert_eq!((f.living, f.most_living, f.used), (9, 9, 10));
    // What survived and is freed explicitly is not living any more.
    (0..5).for_each(|_| heap.free(0, Release::Explicit));
    assert_eq!(heap.owners.figures().living, 5);
}

#[test]
fn the_unfair_program_consumes_as_the_thesis_has_it() {
    // 2.4.2: one owner after the other uses its blocks and frees them.
    const OWNERS: usize = 16;
    const BLOCKS: usize = 300;
    let unfair = |sharing, thousandths| {
        let mut heap = Heap::new(sharing, Ratio::from_thousandths(thousandths), OWNERS);
        for turn in 0..4 * OWNERS {
            for _ in 0..BLOCKS {
                heap.step(Step::Take(turn % OWNERS, 1));
            }
            heap.owners.begin_sweep();
            heap.owners.survived();
            while !heap.held.is_empty() {
                heap.step(Step::Free(0));
            }
        }
        heap.owners.figures()
    };
    assert_eq!(unfair(Sharing::PageShared, 1000).most_consumed, BLOCKS);
    assert_eq!(unfair(Sharing::AllLocal, 1000).most_consumed, OWNERS * BLOCKS);
    let mut last = u64::MAX;
    for (thousandths, consumed) in [(1000, 300), (1500, 450), (2000, 600), (4000, 1200), (16_000, 4800)] {
        let f = unfair(Sharing::LocalityAware, thousandths);
        assert_eq!(f.most_consumed, consumed);
        assert!(f.remote <= last, "more memory leaves fewer remote blocks: {f:?}");
        last = f.remote;
    }
    assert_eq!(last, 0);
}

#[test]
fn the_nearest_free_block_is_taken_first() {
    // Two nodes of two packages of two cores of two CPUs.
    let mut heap = Heap::new(Sharing::LocalityAware, Ratio::ONE, 16);
    for cpu in 0..16 {
        heap.owners.set_place(cpu, [cpu & !1, cpu & !3, cpu & !7]);
    }
    for owner in 0..16 {
        heap.step(Step::Take(owner, 1));
    }
    let of_owner: Vec<usize> = heap.held.iter().map(|(_, run)| run.first).collect();
    while heap.held.len() > 1 {
        let place = usize::from(heap.held[0].0 == 5);
        heap.free(place, Release::Collected);
    }
    let taken: Vec<usize> = (0..15)
        .map(|_| {
            assert_eq!(heap.take(5, 1), Origin::Remote);
            let first = heap.held.last().unwrap().1.first;
            of_owner.iter().position(|&other| other == first).unwrap()
        })
        .collect();
    assert_eq!(taken[0], 4);
    assert_eq!(taken[1..3], [6, 7]);
    assert_eq!(taken[3..7], [0, 1, 2, 3]);
    assert_eq!(taken[7..], [8, 9, 10, 11, 12, 13, 14, 15]);
    assert_eq!(heap.take(5, 1), Origin::New);
}

#[test]
fn threads_that_free_each_others_blocks_stay_below_the_bounds() {
    // The bounds themselves are checked at each growth, in a debug build.
    let settings = [(Sharing::LocalityAware, 1000), (Sharing::LocalityAware, 1500), (Sharing::PageShared, 1000)];
    for (sharing, thousandths) in settings {
        let heap = Heap::new(sharing, Ratio::from_thousandths(thousandths), 8);
        let (owners, space, pool) = (&heap.owners, &heap.space, &heap.pool);
        let used: Mutex<Vec<(usize, Run)>> = Mutex::default();
        let stamp = |run: Run| std::ptr::with_exposed_provenance_mut::<usize>(space.address_of(run.first));
        let work = |owner: usize| {
            let mut random = Random(owner as u64 + 77);
            for step in 0..4000 {
                if random.below(2) == 0 {
                    let n = MIXED[random.below(MIXED.len())];
                    let obtain = |n: Blocks| {
                        let fresh = || Some(Run { first: space.take_fresh(n)?, blocks: n, zero: true });
                        pool.take(space, n).or_else(fresh)
                    };
                    let taken = owners.take(space, pool, (owner, owner), Blocks(n), |_| false, obtain);
                    let (run, _) = taken.expect("there is memory enough");
                    // SAFETY: the run is this thread's.
                    unsafe { stamp(run).write(owner + 1) };
                    used.lock().unwrap().push((owner, run));
                } else {
                    let mut used = used.lock().unwrap();
                    if used.is_empty() {
                        continue;
                    }
                    let n = used.len();
                    let (of, run) = used.swap_remove(random.below(n));
                    drop(used);
                    // SAFETY: the run is this thread's now.
                    assert_eq!(unsafe { stamp(run).read() }, of + 1, "a run was handed out twice");
                    owners.give(space, of, run, Release::Explicit);
                }
                if owner == 0 && step % 1000 == 999 {
                    owners.give_back(space, pool, Blocks(20));
                }
            }
        };
        std::thread::scope(|scope| {
            (0..8).for_each(|owner| {
                drop(scope.spawn({
                    let work = &work;
                    move || work(owner)
                }))
            })
        });
        let f = owners.figures();
        let held: usize = used.lock().unwrap().iter().map(|(_, run)| run.blocks.0).sum();
        assert_eq!((f.used, f.consumed), (held, held + f.free), "{f:?}");
        let free = f.free + pool.resident().0 + pool.discarded().0;
        assert_eq!(held + free, space.frontier().0);
    }
}
