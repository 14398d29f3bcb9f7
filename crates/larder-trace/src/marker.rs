//! One marker: scans entries, finds objects, marks them, shares what it has too much of.
//!
//! A word that may be an object's address is not looked up where it is found: it goes through a short queue whose
//! entries have their mark byte and their object prefetched, so that the cache misses of several objects overlap
//! (thesis 3.4; the queue is Cher, Hosking and Vitek's).
//!
//! Where the processor has vectors for it, eight words are looked up at once and wait as one: [`crate::volley`]. The queue is then used
//! where words come one by one, or lead far away.
//!
//! Neighbouring words of an array often refer to objects of one block. Those are marked and scanned together, without the queue:
//! [`crate::cells`].

use core::ops::AddAssign;
use core::sync::atomic::Ordering;

use larder_policy::ablation::{Ablation, Optimization};
use larder_sys::vector::Vector;

use crate::cells::{Clusters, Of, TOGETHER};
use crate::descriptor::{self, Entry};
use crate::hot::{BATCH, Crowd, Hot, Locality, Novelty, PIECE, QUEUE, STEPS, Width, collect_wide};
use crate::objects::{Inner, Interior, Objects};
use crate::public::{self, Public, Shared};
use crate::stack::Stack;
use crate::volley::{LANES, Volleys};
use crate::walk::{FEW, Trail, Walk, Walks};
use crate::window::{self, Form, Portable};
pub use crate::words::WORDS;
use crate::words::Words;

mod prepare;
#[cfg(test)]
mod tests;
pub use prepare::set_proc;

/// What is told of entries that were made public, and who says that marking should end.
type Announce<'a> = &'a mut dyn FnMut(usize);
type Interrupted<'a> = &'a mut dyn FnMut() -> bool;

/// [`descriptor::STACK`], rotated as a descriptor is to get at its length in words.
const STACK_ROTATED: usize = descriptor::STACK.rotate_right(3);
/// Words that are worth sharing.
const SHARED_ABOVE: usize = 16;
/// Objects after which a marker gives away some of fewer words, if somebody looks for work. Often they lead to nothing, so it does so once more when it
/// has marked twice as many.
const FEW_FROM: usize = 512;
/// Words behind the newest that so many steps may need: all but the last batch find narrow objects.
const ROOM: usize = BATCH * PIECE / size_of::<usize>() + STEPS * window::NARROW;
const _: () = assert!(ROOM <= 3 * WORDS / 4);
/// As many addresses as are worth a look at what they refer to: the beginning of a long array.
const MANY: usize = 32;
/// Entries on its stack up to which a marker lets pieces of long objects pile up for others.
const MOST_PILED: usize = 4096;
/// Entries that client mark procedures can push in one call: 16 MiB of address space, touched as needed; less where stacks are bounded
/// more tightly. A procedure for a weak table pushes an entry for each of its elements.
pub const PROC_ROOM: usize = 1 << 20;

/// What a marker did in one cycle.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Bytes of the objects that it marked.
    pub bytes: usize,
    /// How many they were.
    pub objects: usize,
    /// Entries that it stole.
    pub stolen: usize,
    /// Bytes of long ranges that it scanned: roots and objects that are split.
    pub long: usize,
    /// Objects whose blocks had waited for it to scan them.
    pub by_block: usize,
}

impl Tally {
    /// Nothing was done yet.
    pub const NONE: Self = Self { bytes: 0, objects: 0, stolen: 0, long: 0, by_block: 0 };
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.objects += other.objects;
        self.stolen += other.stolen;
        self.long += other.long;
        self.by_block += other.by_block;
    }
}

/// The private state of one marker, kept between cycles.
pub struct Own {
    /// Private entries.
    pub stack: Stack,
    /// Room for [`WORDS`] words. Not on the stack: any thread may collect, and each would keep the pages.
    pub words: *mut usize,
    /// Room for what client mark procedures push.
    pub proc_room: *mut Entry,
    /// How many entries that has.
    pub proc_entries: usize,
}

// SAFETY: `words` and `proc_room` belong to this marker alone.
unsafe impl Send for Own {}

/// One marker at work in one cycle.
pub struct Marker<'a, H: Objects> {
    heap: H,
    own: &'a mut Own,
    /// The public part of its work list, and its form; shared only when there are several markers.
    public: Option<Shared<'a>>,
    /// What it does without.
    ablation: Ablation,
    /// Places on their way, `nowhere` where there is none.
    queue: [H::Place; QUEUE],
    /// The slot that has waited longest.
    at: usize,
    /// What entered the queue before `at` was this is out of it.
    empty_at: usize,
    /// What it did.
    pub tally: Tally,
    /// From so many objects on it gives away some of few words.
    few_from: usize,
    /// Where it looks for blocks that wait, and whether they should.
    grey_from: usize,
    /// What it scans lay in blocks that it took.
    by_block: bool,
    crowd: Crowd,
    /// What it knows, when it goes on, of where words lead and of what.
    locality: Locality,
    novelty: Novelty,
    width: Width,
    /// Where entries go that are not to be scanned beside the program; `None` in a stopped world. See [`Marker::put_aside`].
    aside: Option<&'a mut Vector<Entry>>,
}

impl<'a, H: Objects> Marker<'a, H> {
    /// A marker that goes on with what is on its stack, and has no public part.
    pub fn new(heap: H, own: &'a mut Own) -> Self {
        Self {
            heap,
            own,
            public: None,
            ablation: Ablation::NONE,
            queue: [heap.nowhere(); QUEUE],
            at: 0,
            empty_at: 0,
            tally: Tally::default(),
            few_from: FEW_FROM,
            grey_from: 0,
            by_block: false,
            crowd: Crowd::default(),
            locality: Locality::default(),
            novelty: Novelty::default(),
            width: Width::default(),
            aside: None,
        }
    }

    /// Leaves optimizations out from here on; its crew does the same.
    pub fn leave_out(&mut self, ablation: Ablation) {
        self.ablation = ablation;
    }

    /// What it does without.
    pub fn ablation(&self) -> Ablation {
        self.ablation
    }

    /// For marking beside the program: entries that name a client's mark procedure, or a descriptor that must be looked
    /// up in memory which the program may be changing, are added to `aside` and not scanned. A procedure may follow
    /// pointers into memory that another thread frees; a type that is read too early may be anything.
    ///
    /// One in the object behind its first word is looked up: it is written once, when the object is made, and is zero before.
    pub fn put_aside(&mut self, aside: &'a mut Vector<Entry>) {
        self.aside = Some(aside);
    }

    /// Takes an entry aside if that is wanted; says whether it was.
    fn is_put_aside(&mut self, entry: Entry) -> bool {
        let Some(aside) = &mut self.aside else { return false };
        // An entry that is lost is found by the walk that an overflow asks for.
        self.own.stack.overflowed |= aside.push(entry).is_err();
        true
    }

    /// Descriptors that are found through their objects are put aside below this one: see [`Marker::put_aside`].
    #[inline(always)]
    fn resolves_from(&self) -> isize {
        if self.aside.is_none() { isize::MIN } else { descriptor::PER_OBJECT.cast_signed() + 1 }
    }

    /// The heap.
    pub fn heap(&self) -> H {
        self.heap
    }

    /// Adds work.
    pub fn push(&mut self, entry: Entry) {
        self.own.stack.push(entry);
    }

    /// Adds work, or takes it aside where the marker does so at all: for an object whose descriptor may not be there yet.
    pub fn push_unless_beside(&mut self, entry: Entry) {
        if !self.is_put_aside(entry) {
            self.push(entry);
        }
    }

    /// Adds a range of words.
    pub fn push_range(&mut self, low: usize, high: usize, interior: Interior) {
        let low = low.next_multiple_of(size_of::<usize>());
        let length = high.saturating_sub(low) & !7;
        let tag = if interior == Interior::Always { descriptor::STACK } else { descriptor::LENGTH };
        if length > 0 {
            self.push(Entry { start: core::ptr::with_exposed_provenance_mut(low), descriptor: length | tag });
        }
    }

    /// Looks at the words of a range now, and marks what they refer to: for ranges that may be gone later.
    ///
    /// # Safety
    /// The range is readable.
    pub unsafe fn scan_now(&mut self, low: usize, high: usize, interior: Interior) {
        let mut hot = self.lift();
        let range = self.heap.range();
        for at in (low.next_multiple_of(size_of::<usize>())..high & !7).step_by(size_of::<usize>()) {
            // SAFETY: the caller's promise.
            let word = unsafe { core::ptr::with_exposed_provenance::<usize>(at).read() };
            if word.wrapping_sub(range.base) < range.span
                && let Some(place) = self.heap.find(word, interior)
            {
                hot.found::<true>(&mut self.queue, place, word);
                if hot.refused.is_some() {
                    self.lower(hot);
                    hot = self.lift();
                }
            }
        }
        self.lower(hot);
    }

    /// Looks at one word as if it had been found in a range.
    pub fn word(&mut self, word: usize, interior: Interior) {
        let Some(place) = self.heap.find(word, interior) else { return };
        let mut hot = self.lift();
        if self.ablation.leaves_out(Optimization::Prefetch) {
            hot.found::<false>(&mut self.queue, place, word);
        } else {
            hot.found::<true>(&mut self.queue, place, word);
        }
        self.lower(hot);
    }

    /// Marks an object, and adds it to the work if it must be scanned.
    pub fn mark(&mut self, place: H::Place) {
        let mut hot = self.lift();
        hot.mark(place);
        self.lower(hot);
    }

    /// Whether its private part is empty. What is in its queue does not count.
    pub fn is_idle(&self) -> bool {
        self.own.stack.is_empty()
    }

    /// Whether there is as much on its private part as there is room for more.
    pub fn is_half_full(&self) -> bool {
        self.own.stack.is_half_full()
    }

    /// Remembers that something marked was not scanned: the heap is walked for it.
    pub fn note_overflow(&mut self) {
        self.own.stack.note_overflow();
    }

    /// Marks what is still in the queue.
    #[inline(never)]
    pub fn flush(&mut self) {
        let mut hot = self.lift();
        let waiting = self.at.wrapping_sub(self.empty_at).min(QUEUE);
        for ago in (1..=waiting).rev() {
            let slot = self.at.wrapping_sub(ago) % QUEUE;
            let place = core::mem::replace(&mut self.queue[slot], self.heap.nowhere());
            hot.mark(place);
        }
        self.empty_at = hot.at;
        self.lower(hot);
    }

    /// What the inner loops need in registers.
    #[inline(always)]
    fn lift(&mut self) -> Hot<H> {
        Hot {
            heap: self.heap,
            stack: self.own.stack.cursor(),
            at: self.at,
            by_block: self.by_block,
            resolves_from: self.resolves_from(),
            tally: self.tally,
            refused: None,
            overflowed: false,
            known: 0,
        }
    }

    /// Brings it back.
    #[inline(always)]
    fn lower(&mut self, hot: Hot<H>) {
        self.own.stack.put(hot.stack);
        (self.at, self.tally) = (hot.at, hot.tally);
        if let Some(entry) = hot.refused {
            self.own.stack.push(entry);
        }
        self.own.stack.overflowed |= hot.overflowed;
    }

    /// Works until its private part and its queue are empty, and no block waits. Returns entries to the public part on the way, calling
    /// `announce` with their number.
    pub fn drain(&mut self, mut announce: impl FnMut(usize)) {
        loop {
            self.drain_until(&mut announce, || false);
            if !self.take_grey() {
                return;
            }
        }
    }

    /// Puts what is grey in some blocks that wait on its stack; false where none waits.
    pub fn take_grey(&mut self) -> bool {
        // They were found so.
        self.locality = Locality::FAR;
        let mut took = false;
        loop {
            let stack = &mut self.own.stack;
            let Some(seen) = self.heap.take_grey(&mut self.grey_from, &mut |entry| stack.push(entry)) else { break };
            took = true;
            self.crowd.see(seen);
            self.tally.by_block += seen.objects;
            // Where no more are to wait, all that do come together: a few at a time would each be waited for.
            if self.crowd.is_worth_it() || self.own.stack.is_half_full() || self.own.stack.len() >= MOST_PILED {
                break;
            }
        }
        self.by_block = took;
        took
    }

    /// As [`Marker::drain`], but leaves blocks that wait, and what is left on its stack when `interrupted` says so. It is asked for every batch.
    /// Returns whether nothing is left on its stack.
    pub fn drain_until(&mut self, mut announce: impl FnMut(usize), mut interrupted: impl FnMut() -> bool) -> bool {
        // Called for every batch at most; with a copy of the loop for each caller the loops were two thirds of the library.
        let (announce, interrupted): (Announce<'_>, Interrupted<'_>) = (&mut announce, &mut interrupted);
        if self.ablation.leaves_out(Optimization::Prefetch) {
            self.drain_as::<false>(window::best(), announce, interrupted)
        } else {
            self.drain_as::<true>(window::best(), announce, interrupted)
        }
    }

    /// The same in a form that the processor has.
    fn drain_as<const QUEUED: bool>(
        &mut self,
        form: Form,
        announce: Announce<'_>,
        interrupted: Interrupted<'_>,
    ) -> bool {
        match form {
            Form::Portable => self.drain_with::<Portable, QUEUED, false>(announce, interrupted),
            // SAFETY: the processor has what the form asks for.
            #[cfg(target_arch = "x86_64")]
            Form::Avx2 => unsafe { self.drain_avx2::<QUEUED, false>(announce, interrupted) },
            // SAFETY: likewise.
            #[cfg(target_arch = "x86_64")]
            Form::Avx2Volleys => unsafe { self.drain_avx2::<QUEUED, QUEUED>(announce, interrupted) },
            // SAFETY: likewise.
            #[cfg(target_arch = "x86_64")]
            Form::Avx512 => unsafe { self.drain_avx512::<QUEUED, false>(announce, interrupted) },
            // SAFETY: likewise.
            #[cfg(target_arch = "x86_64")]
            Form::Avx512Volleys => unsafe { self.drain_avx512::<QUEUED, QUEUED>(announce, interrupted) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("forms of other processors"),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    fn drain_avx2<const QUEUED: bool, const AIMED: bool>(
        &mut self,
        announce: Announce<'_>,
        interrupted: Interrupted<'_>,
    ) -> bool {
        self.drain_with::<window::Avx2, QUEUED, AIMED>(announce, interrupted)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,avx512f,bmi1,bmi2,popcnt")]
    fn drain_avx512<const QUEUED: bool, const AIMED: bool>(
        &mut self,
        announce: Announce<'_>,
        interrupted: Interrupted<'_>,
    ) -> bool {
        self.drain_with::<window::Avx512, QUEUED, AIMED>(announce, interrupted)
    }

    #[inline(always)]
    fn drain_with<L: Walks, const QUEUED: bool, const AIMED: bool>(
        &mut self,
        announce: Announce<'_>,
        interrupted: Interrupted<'_>,
    ) -> bool {
        let share_above = match self.public {
            Some(shared) => shared.form.share_above(),
            None => usize::MAX / (2 * size_of::<Entry>()),
        };
        let (heap, range) = (self.heap, self.heap.range());
        let all = heap.counts_everywhere(Interior::AsConfigured);
        let inner = Inner { all, near: heap.near_displacements() };
        // SAFETY: the caller has seen to the processor.
        let mut ready = unsafe { L::ready(range) };
        // SAFETY: the marker's own memory for this; `prepare` uses it where there are no words only.
        let mut words = unsafe { Words::new(self.own.words) };
        let mut hot = self.lift();
        // The entry that was scanned last was a piece of a long object, and its other pieces are to wait.
        let mut wanting = false;
        let (mut locality, mut novelty, mut width) = (self.locality, self.novelty, self.width);
        let mut trail = Trail::default();
        let mut clusters = Clusters::new();
        let mut volleys = Volleys::new();
        // How many words, from the oldest on, are an array's. What small objects refer to is a cluster as often, but taking it so marks a tree in another
        // order than it was made in: trees made from the leaves up took a third longer.
        let mut of_array = 0;
        // The piece that was scanned last held many words, and the next one may: few that are left are not gone through alone.
        let mut rich = false;
        let clustered = !self.ablation.leaves_out(Optimization::Clusters);
        // Where markers do not steal, what waits would be everybody's all the same.
        let left_out = [Optimization::Grey, Optimization::Balance].iter().any(|&it| self.ablation.leaves_out(it));
        let greys = self.crowd.is_worth_it() && !left_out;
        loop {
            if interrupted() {
                self.lower(hot);
                (self.novelty, self.width) = (novelty, width);
                self.keep(&mut words, usize::MAX, all);
                self.keep_clusters(&mut clusters);
                if AIMED {
                    self.keep_volleys(&mut volleys);
                }
                self.flush();
                return self.own.stack.is_empty();
            }
            // Of few entries the oldest may still be much work.
            let many = hot.stack.is_above(share_above) || hot.stack.begins_with_longer(PIECE / size_of::<usize>());
            // So may what the oldest of few entries or words leads to: of two lists, one.
            let has_two = words.len() > 1 || !volleys.is_empty() || hot.stack.is_above(usize::from(words.is_empty()));
            let is_due = has_two && hot.tally.objects >= self.few_from;
            if (many || words.len() > SHARED_ABOVE || is_due) && self.is_wanting() {
                self.few_from = hot.tally.objects.saturating_mul(2).max(FEW_FROM);
                self.lower(hot);
                if !many {
                    if AIMED {
                        self.keep_volleys(&mut volleys);
                    }
                    let half = words.len() / 2;
                    self.keep(&mut words, half, all);
                }
                // What is left in `words` is this marker's.
                let private = self.own.stack.len();
                self.share(announce, if many || words.is_empty() { private / 2 } else { private });
                hot = self.lift();
            }
            let wants_more = words.is_empty() || AIMED && rich && words.len() <= FEW && hot.has_piece();
            if wants_more && clusters.is_empty() && volleys.is_empty() {
                if hot.at != self.empty_at && (wanting || hot.stack.is_empty()) {
                    if QUEUED && greys && width.is_wide() && locality.is_far() {
                        // They were not asked for.
                        hot.mark_waiting_grey(&mut self.queue, &mut self.empty_at);
                        continue;
                    }
                    let place = hot.take_waiting(&mut self.queue, &mut self.empty_at);
                    if let Some(entry) = hot.take(place) {
                        hot.scan::<L>(entry, &mut words);
                    }
                } else if let Some(entry) = hot.stack.pop() {
                    // The length in words, and above it the tag.
                    let rotated = entry.descriptor.rotate_right(3);
                    let length = rotated & !STACK_ROTATED;
                    if length > PIECE / size_of::<usize>() {
                        if hot.scan_described(entry, &mut words).is_some() {
                            continue;
                        }
                        self.lower(hot);
                        // SAFETY: there is room for a piece.
                        unsafe { self.prepare::<QUEUED>(entry, words.top(), announce) };
                        hot = self.lift();
                        // Where there are others, what this object's beginning refers to comes before its other pieces, which pile up
                        // then: others take many at once, far from where this one is. When pieces piled up only while others had
                        // nothing, two markers took 1.6 times as much processor time for a list of arrays as one.
                        wanting = self.public.is_some() && !hot.stack.is_above(MOST_PILED);
                        continue;
                    }
                    let at = entry.start.cast::<usize>().cast_const();
                    // SAFETY: whoever pushed the entry vouches for its range. Memory that a program did not write yet comes from the
                    // kernel as zeroes or holds what was there before; in a cycle beside the program a word may change while it is
                    // read, and then its page is scanned again. There is room for a piece.
                    unsafe {
                        words.grow(if length <= window::NARROW {
                            L::collect_narrow(at, length, L::ready(range), words.top())
                        } else {
                            collect_wide::<L>(at, length, range, words.top())
                        });
                    }
                    if length > window::NARROW {
                        hot.ask_for_next();
                    }
                    if hot.by_block || rotated != length {
                        hot.ask_for_later();
                    }
                    rich = words.len() >= MANY;
                    if words.is_empty() {
                        hot.scan_on::<L>(&mut words);
                        of_array = 0;
                        continue;
                    }
                    let leaf = |i: usize| heap.is_leaf(heap.look_up(words.all()[i], all));
                    let found = words.len();
                    if rotated != length {
                        // These count differently, so they do not stay.
                        while let Some(word) = words.pop() {
                            hot.found::<QUEUED>(&mut self.queue, heap.look_up(word, true), word);
                        }
                    } else if clustered && found >= MANY && leaf(found / 4) && leaf(found / 2) && leaf(found - 1) {
                        // Not the first word, which often links to the next array.
                        hot.found_leaves::<L, QUEUED>(&mut self.queue, words.all_mut(), inner);
                        words.clear();
                    } else {
                        of_array = if clustered && found >= MANY { found } else { 0 };
                    }
                } else {
                    self.lower(hot);
                    if self.own.stack.is_empty() {
                        (self.novelty, self.width) = (novelty, width);
                        return true;
                    }
                    hot = self.lift();
                }
            } else {
                wanting = false;
            }
            if !AIMED
                && words.len() == 1
                && clusters.is_empty()
                && hot.stack.is_empty()
                && hot.at == self.empty_at
                && !(greys && locality.is_far() && heap.has_grey())
            {
                // A list: there is nothing else to do while the next element is fetched, and nothing waits in the queue, nor a block. Where there are volleys, few words
                // are walked in any case, below.
                Walk::walk::<L>(&mut hot, &mut words, &mut trail, all);
            }
            if let [.., one, other] = words.all() {
                locality.see(one.abs_diff(*other));
            }
            // Without words, it is the clusters' turn. Volleys ask for objects at once, in vain where most is marked; and few of them wait, so
            // that long objects in no order are not there when they are scanned.
            let in_volleys = AIMED && L::AIMS_FAR && !novelty.is_low() && !width.is_wide();
            let is_far = QUEUED && !in_volleys && locality.is_far() && !words.is_empty();
            if is_far {
                hot.scan_far::<L>(&mut self.queue, &mut words, all, greys && width.is_wide(), &mut novelty, &mut width);
            }
            let (before, mut aimed) = (hot.tally.objects, 0);
            // Only an array's words become clusters.
            let has_clusters = of_array > 0 || !clusters.is_empty();
            let mut steps = if is_far { 0 } else { STEPS / BATCH };
            while steps > 0 {
                steps -= 1;
                if has_clusters {
                    if (clusters.is_full() || words.len() < TOGETHER)
                        && let Some(cluster) = clusters.oldest()
                    {
                        let before = words.len();
                        hot.scan_cluster::<L>(&mut words, cluster, ready);
                        if AIMED {
                            // What leads on is marked as fast in volleys, which wait for more at a time.
                            clusters.guess(Of::Array).see(words.len() - before < TOGETHER / 2);
                        }
                        continue;
                    }
                    of_array = of_array.min(words.len());
                    let of = if of_array == words.len() { Of::Array } else { Of::Others };
                    if of_array >= TOGETHER
                        && hot.take_cluster::<L, QUEUED, AIMED>(&mut words, &mut clusters, of, inner)
                    {
                        continue;
                    }
                }
                if AIMED {
                    let has_few = words.len() < LANES;
                    if words.len() <= FEW && volleys.is_empty() {
                        if rich && hot.has_piece() {
                            break;
                        }
                        // A chain, with something at its side: a volley of so few would take longer than each by itself.
                        if Walk::walk::<L>(&mut hot, &mut words, &mut trail, all) || words.is_empty() {
                            break;
                        }
                        continue;
                    }
                    // Taken before others are found: the processor waits for words that were written just now. So it looks these up while it
                    // scans what an earlier volley found.
                    let is_crowded = volleys.is_crowded();
                    let early = (!has_few && !is_crowded).then(|| words.take_newest::<LANES>());
                    let mut is_long = false;
                    if (volleys.is_full() || has_few)
                        && let Some(volley) = volleys.oldest()
                    {
                        let before = words.len();
                        // SAFETY: the caller has seen to the processor.
                        ready = unsafe { L::without(ready, hot.known) };
                        is_long = hot.scan_volley::<L>(&mut words, volley, ready);
                        width.see(is_long);
                        if clustered && is_long && words.len() >= before + MANY {
                            of_array = words.len();
                        }
                    }
                    if let Some((taken, _)) = early {
                        hot.aim::<L>(&taken, LANES, &mut volleys, inner);
                        aimed += LANES;
                    } else if words.len() <= FEW && volleys.is_empty() {
                        // As above, next.
                        if words.is_empty() {
                            break;
                        }
                    } else if !is_crowded && (words.len() >= LANES || volleys.is_empty()) && !words.is_empty() {
                        // While others wait, what they find comes to these few first: a part of a volley takes as long as a whole one.
                        let (taken, n) = words.take_newest::<LANES>();
                        hot.aim::<L>(&taken, n, &mut volleys, inner);
                        aimed += n;
                    }
                    if is_long {
                        break;
                    }
                    continue;
                }
                if words.is_empty() {
                    break;
                }
                let (mut batch, mut n) = ([Entry::at(0, 0); BATCH], 0);
                for _ in 0..BATCH {
                    let Some(word) = words.pop() else { break };
                    if let Some(entry) = hot.step::<QUEUED>(&mut self.queue, heap.look_up(word, all), word) {
                        batch[n] = entry;
                        n += 1;
                    }
                }
                let mut is_long = false;
                // The newest word's object last, so that what is in it comes first.
                for &entry in batch[..n].iter().rev() {
                    is_long |= hot.scan::<L>(entry, &mut words);
                }
                if is_long {
                    break;
                }
            }
            if AIMED {
                novelty.see(aimed, hot.tally.objects - before);
            }
            if hot.refused.is_some() || words.len() > WORDS - ROOM {
                self.lower(hot);
                if words.len() > WORDS - ROOM {
                    self.keep(&mut words, WORDS / 2, all);
                }
                hot = self.lift();
            }
        }
    }

    /// Marks what the oldest words refer to, and puts it on the stack.
    #[inline(never)]
    fn keep(&mut self, words: &mut Words, n: usize, all: bool) {
        let n = n.min(words.len());
        let mut hot = self.lift();
        for i in 0..n {
            let word = words.all()[i];
            hot.mark(self.heap.look_up(word, all));
            if hot.refused.is_some() {
                self.lower(hot);
                hot = self.lift();
            }
        }
        self.lower(hot);
        words.drop_oldest(n);
    }

    /// Marks the clusters that wait, and puts their objects on the stack.
    #[inline(never)]
    fn keep_clusters(&mut self, clusters: &mut Clusters) {
        while let Some((cells, located)) = clusters.oldest() {
            let mut hot = self.lift();
            let mut rest = hot.mark_located(cells, located);
            self.lower(hot);
            while rest != 0 {
                let start = located.starts[rest.trailing_zeros() as usize];
                self.own.stack.push(Entry::at(start, cells.words * size_of::<usize>()));
                rest &= rest - 1;
            }
        }
    }

    /// Marks what the volleys that wait found, and puts it on the stack.
    #[inline(never)]
    fn keep_volleys(&mut self, volleys: &mut Volleys) {
        let mut hot = self.lift();
        while let Some(volley) = volleys.oldest() {
            for lane in 0..LANES {
                if let Some(entry) = hot.mark_lane(volley, lane) {
                    hot.keep(entry);
                }
            }
        }
        self.lower(hot);
    }

    /// Whether there are others who look for work, and nothing that they could take.
    fn is_wanting(&self) -> bool {
        self.public.is_some_and(|shared| shared.hungry.load(Ordering::Relaxed) > 0 && shared.part.is_empty(shared.form))
    }

    fn share(&mut self, announce: Announce<'_>, most: usize) {
        let Some(Shared { part, form, .. }) = self.public else { return };
        if part.is_empty(form) {
            // SAFETY: this marker owns both.
            announce(unsafe { part.share(form, &mut self.own.stack, most) });
        }
    }

    /// Takes something public back; false where there is nothing. In the watermark's form its private part is empty.
    ///
    /// # Safety
    /// The public part is this marker's own.
    pub(crate) unsafe fn take_back(&mut self, public: &Public, form: public::Form) -> bool {
        // SAFETY: the caller's promise.
        unsafe { public.take_back(form, &mut self.own.stack) }
    }

    /// Steals from another's public part; false where there is nothing.
    pub(crate) fn steal_from(&mut self, victim: &Public, form: public::Form) -> bool {
        let got = victim.steal(form, &mut self.own.stack);
        self.tally.stolen += got;
        got > 0
    }

    /// Takes the oldest private entry, to be given to another marker before the round.
    pub(crate) fn deal(&mut self) -> Option<Entry> {
        let entry = self.own.stack.pop_oldest();
        self.own.stack.settle();
        entry
    }

    /// Private entries.
    pub(crate) fn private(&self) -> usize {
        self.own.stack.len()
    }

    /// Gives the marker a public part for the next round, or takes it away: outside of a round nobody would take what it
    /// shares.
    pub(crate) fn set_public(&mut self, public: Option<Shared<'a>>) {
        self.public = public;
    }

    /// Forgets all work: the cycle is given up.
    pub fn abandon(&mut self) {
        self.queue = [self.heap.nowhere(); QUEUE];
        self.empty_at = self.at;
        self.own.stack.clear();
    }

    /// Ends the marker's work in this cycle. Nothing is left to do.
    pub fn finish(self) {
        self.own.stack.trim();
    }

    /// Whether entries were dropped.
    pub fn take_overflow(&mut self) -> bool {
        self.own.stack.take_overflow()
    }
}
