//! The inner loops of a marker: what they keep in registers, and their steps.

use core::hint::select_unpredictable;

use crate::cells::{Cells, Clusters, Located, NEWEST, Of, TOGETHER};
use crate::described;
use crate::descriptor::{self, Entry};
use crate::marker::Tally;
use crate::objects::{Grey, Inner, Marked, Objects, Visit};
use crate::stack::Cursor;
use crate::volley::{LANES, Most, NO_RECORD, Volley, Volleys};
use crate::window::{self, Form, Look, Portable, Range};
use crate::words::Words;
use larder_sys::hint::{prefetch, prefetch_early};

/// Places that are on their way from `find` to `mark`.
pub const QUEUE: usize = 16;
/// Longest piece, in bytes, that is scanned in one go; longer ones are halved and the upper half can be stolen (SLO).
pub const PIECE: usize = 2048;
/// Words in a cache line.
const LINE_WORDS: usize = 8;
/// Words that are looked up before any of the objects is scanned: what they wait for overlaps.
pub const BATCH: usize = 8;
/// Words that are looked up before any of their objects is asked for, where these lie in no order.
const TOGETHER_FAR: usize = QUEUE / 2;
/// So many words before a word is looked up, the record of its block is asked for.
const AHEAD: usize = 12;
/// The same in clusters, in an array whose words lead to leaves in many blocks.
const CLUSTERS_AHEAD: usize = 2;
/// So many entries before it is scanned, what is not narrow is asked for.
const SCANNED_AHEAD: usize = 20;
/// ... so many bytes of it at most: the processor foresees where it goes on.
const ASKED_AHEAD: usize = 512;
/// Words that are looked at before a marker asks whether it is interrupted, or others have nothing.
pub const STEPS: usize = 64;

/// Does something for each lane of a volley. No loop, which would be a quarter of the instructions; and no closure: one that is not inlined has no
/// vector instructions.
macro_rules! for_each_lane {
    ($lane:ident => $body:block) => {
        for_each_lane!($lane => $body, 0 1 2 3 4 5 6 7);
    };
    ($lane:ident => $body:block, $($number:literal)*) => {
        $({
            const _: () = assert!($number < LANES);
            let $lane = $number;
            $body
        })*
    };
}
const _: () = assert!(LANES == 8, "`for_each_lane`");

/// What the inner loops of a marker use, apart from the queue: small enough for the registers.
#[derive(Clone, Copy)]
pub struct Hot<H: Objects> {
    pub heap: H,
    pub stack: Cursor,
    pub at: usize,
    /// What is scanned lay in blocks that were taken.
    pub by_block: bool,
    /// Descriptors that are found through their objects are to be put aside below this one.
    pub resolves_from: isize,
    pub tally: Tally,
    /// An entry for which there was no room: `lower` makes some.
    pub refused: Option<Entry>,
    /// One was refused after that, and is lost.
    pub overflowed: bool,
    /// Where a marked object begins to which several words led, as it seems: 0 where none is known. It is not worth more looks.
    pub known: usize,
}

impl<H: Objects> Hot<H> {
    /// Puts a place into the queue, and marks the one that has waited longest. Marks it at once where there is no queue.
    #[inline(always)]
    pub fn found<const QUEUED: bool>(&mut self, queue: &mut [H::Place; QUEUE], place: H::Place, word: usize) {
        if !QUEUED {
            return self.mark(place);
        }
        self.heap.prefetch(place, word);
        let earlier = self.queue_up(queue, place);
        self.mark(earlier);
    }

    /// Puts a place into the queue, and takes out the one that has waited longest.
    #[inline(always)]
    fn queue_up(&mut self, queue: &mut [H::Place; QUEUE], place: H::Place) -> H::Place {
        let slot = self.at % QUEUE;
        self.at = self.at.wrapping_add(1);
        core::mem::replace(&mut queue[slot], place)
    }

    /// As [`Hot::found`], but says what is to be scanned instead of putting it on the stack.
    #[inline(always)]
    pub fn step<const QUEUED: bool>(
        &mut self,
        queue: &mut [H::Place; QUEUE],
        place: H::Place,
        word: usize,
    ) -> Option<Entry> {
        let mut earlier = place;
        if QUEUED {
            self.heap.prefetch(place, word);
            earlier = self.queue_up(queue, place);
        }
        self.take(earlier)
    }

    /// Marks the object there, if one is allocated and not marked yet, and counts it. What to scan in it.
    #[inline(always)]
    pub fn take(&mut self, place: H::Place) -> Option<Entry> {
        let Marked { bytes, entry } = self.heap.mark(place)?;
        self.tally.bytes += bytes;
        self.tally.objects += 1;
        Some(entry)
    }

    /// Adds the addresses in an object that was just marked to `words`, which have room for a piece; what is not to be scanned at once is put on the
    /// stack. Whether it was no narrow one.
    #[inline(always)]
    pub fn scan<L: Look>(&mut self, entry: Entry, words: &mut Words) -> bool {
        let length = entry.words();
        if length > window::NARROW {
            return self.scan_other::<L>(entry, words);
        }
        // As in `scan_lanes`.
        let first = select_unpredictable(length == 0, NO_RECORD.0.as_ptr().cast(), entry.first());
        // SAFETY: as in `drain_with`; the caller has seen to room for a piece.
        unsafe {
            let ready = L::ready(self.heap.range());
            words.grow(L::collect_narrow(first, length, ready, words.top()));
        }
        false
    }

    /// The same for what is no narrow range of words.
    #[inline(always)]
    fn scan_other<L: Look>(&mut self, entry: Entry, words: &mut Words) -> bool {
        let length = entry.words();
        if length <= PIECE / size_of::<usize>() {
            // SAFETY: as in `scan`.
            unsafe { words.grow(collect_wide::<L>(entry.first(), length, self.heap.range(), words.top())) };
            return true;
        }
        if let Some(n) = self.scan_described(entry, words) {
            return n > window::NARROW;
        }
        if !self.stack.push_if(entry, true) {
            self.overflowed |= self.refused.replace(entry).is_some();
        }
        true
    }

    /// Adds the addresses in an object with a bitmap, or whose own descriptor turns out to be one, or a length; how many they are. `None` where an entry asks for
    /// something else.
    #[inline(always)]
    pub fn scan_described(&self, entry: Entry, words: &mut Words) -> Option<usize> {
        if !self.may_collect(entry) {
            return None;
        }
        // SAFETY: as in `scan`; what has a descriptor like that is an object, whose kind says where it is.
        let n = unsafe { described::collect(entry, self.heap.range(), words.top()) }? as usize;
        // SAFETY: so many were written.
        unsafe { words.grow(n) };
        Some(n)
    }

    /// Whether what an entry with a tag asks for is words, or may turn out to be.
    #[inline(always)]
    fn may_collect(&self, entry: Entry) -> bool {
        match entry.descriptor & descriptor::TAG {
            descriptor::BITMAP => true,
            descriptor::PER_OBJECT => entry.descriptor.cast_signed() >= self.resolves_from,
            _ => false,
        }
    }

    /// Asks for what comes after a long range: the rest of its object, or another one. The processor foresees neither beyond a page.
    #[inline(always)]
    pub fn ask_for_next(&self) {
        if let Some(&next) = self.stack.nth_newest(0) {
            lines_of(next, next.words().saturating_mul(size_of::<usize>()).min(PIECE)).for_each(prefetch);
        }
    }

    /// Whether the newest entry is a range of words that is scanned in one go.
    #[inline(always)]
    pub fn has_piece(&self) -> bool {
        self.stack.nth_newest(0).is_some_and(|entry| entry.words() <= PIECE / size_of::<usize>())
    }

    /// Scans the newest short entries, as many as a batch has, until one leads somewhere.
    #[inline(always)]
    pub fn scan_on<L: Look>(&mut self, words: &mut Words) {
        for _ in 0..BATCH {
            let Some(&entry) = self.stack.nth_newest(0) else { return };
            if entry.words() > PIECE / size_of::<usize>() || !words.is_empty() {
                return;
            }
            self.stack.pop();
            self.scan::<L>(entry, words);
            if self.by_block {
                self.ask_for_later();
            }
        }
    }

    /// Asks for what is scanned [`SCANNED_AHEAD`] entries later, where that is wide.
    #[inline(always)]
    pub fn ask_for_later(&self) {
        let Some(&later) = self.stack.nth_newest(SCANNED_AHEAD) else { return };
        let bytes = later.descriptor & !7;
        if bytes > window::NARROW * size_of::<usize>() && later.descriptor & descriptor::TAG == descriptor::LENGTH {
            lines_of(later, bytes.min(ASKED_AHEAD)).for_each(prefetch_early);
        }
    }

    /// Marks what the words refer to, and scans a batch of the newest short entries: for objects that lie in no order. All that is found
    /// is asked for at once, and lies on the stack, marked, until its turn comes, by when it is there. Where most is marked already, only marks
    /// are asked for, and an object once it turns out not to be. With `greys` no object is asked for, and those whose block can wait are not put on
    /// the stack.
    #[inline(always)]
    pub fn scan_far<L: Look>(
        &mut self,
        queue: &mut [H::Place; QUEUE],
        words: &mut Words,
        all: bool,
        greys: bool,
        novelty: &mut Novelty,
        width: &mut Width,
    ) {
        let (most_is_known, before, mut looked_at) = (novelty.is_low(), self.tally.objects, 0);
        for _ in 0..STEPS / BATCH {
            looked_at += words.len();
            if greys {
                self.found_grey(queue, words.all(), all);
            } else if most_is_known {
                let records = self.heap.records();
                let all_words = words.all();
                for (i, &word) in all_words.iter().enumerate() {
                    // The table of records is too large for the nearer caches.
                    prefetch(records.of(all_words[(i + AHEAD).min(all_words.len() - 1)]));
                    self.found_known(queue, self.heap.look_up(word, all));
                }
            } else {
                for some in words.all().chunks(TOGETHER_FAR) {
                    self.found_far(queue, some, all);
                }
            }
            words.clear();
            if self.stack.is_empty() {
                // All of it waits. How wide it is will be seen when it is scanned.
                break;
            }
            let mut is_wide = false;
            for _ in 0..BATCH {
                let Some(entry) = self.stack.pop() else { break };
                let length = entry.descriptor.rotate_right(3);
                if length > PIECE / size_of::<usize>() && !self.may_collect(entry) || self.refused.is_some() {
                    self.stack.push_if(entry, true);
                    novelty.see(looked_at, self.tally.objects - before);
                    return;
                }
                is_wide |= self.scan::<L>(entry, words);
                if greys && self.by_block {
                    self.ask_for_later();
                }
            }
            width.see(is_wide);
        }
        novelty.see(looked_at, self.tally.objects - before);
    }

    /// As [`Hot::found`] with a queue, for words that lead to pages whose translation the processor has yet to find. It finds several at once, of
    /// what it is asked for within some three hundred instructions: so nothing else comes between the requests for their first lines, and their
    /// other lines are asked for when those of the next words have been.
    #[inline(always)]
    fn found_far(&mut self, queue: &mut [H::Place; QUEUE], words: &[usize], all: bool) {
        let first = self.at;
        for &word in words {
            let place = self.heap.look_up(word, all);
            let earlier = self.queue_up(queue, place);
            self.mark(earlier);
        }
        for i in 0..words.len() {
            self.heap.prefetch_first(queue[first.wrapping_add(i) % QUEUE]);
        }
        for i in 0..words.len() {
            self.heap.prefetch_others(queue[first.wrapping_add(i).wrapping_sub(TOGETHER_FAR) % QUEUE]);
        }
    }

    /// As [`Hot::found`] with a queue, for words whose objects may be scanned with others of their blocks, later.
    #[inline(always)]
    fn found_grey(&mut self, queue: &mut [H::Place; QUEUE], words: &[usize], all: bool) {
        let records = self.heap.records();
        let mut ahead = words.iter().skip(AHEAD);
        for some in words.chunks(TOGETHER_FAR) {
            let mut waiting = ToWait::<TOGETHER_FAR>::default();
            for &word in some {
                if let Some(&word) = ahead.next() {
                    // The table of records is too large for the nearer caches.
                    prefetch(records.of(word));
                }
                let place = self.heap.look_up(word, all);
                self.heap.prefetch_mark(place);
                let earlier = self.queue_up(queue, place);
                self.mark_grey(earlier, &mut waiting);
            }
            self.heap.wait(waiting.all());
        }
    }

    /// Marks the object there, which becomes grey if it can, and notes its block. There is room for one more.
    #[inline(always)]
    fn mark_grey<const MOST: usize>(&mut self, place: H::Place, waiting: &mut ToWait<MOST>) {
        let Some(Grey { bytes, entry, block, waits }) = self.heap.mark_grey(place) else { return };
        self.tally.bytes += bytes;
        self.tally.objects += 1;
        self.keep(entry);
        waiting.add_if(block, waits);
    }

    /// As [`Hot::found`] with a queue, for a place whose object is marked already, by all appearances.
    #[inline(always)]
    fn found_known(&mut self, queue: &mut [H::Place; QUEUE], place: H::Place) {
        self.heap.prefetch_mark(place);
        let earlier = self.queue_up(queue, place);
        if let Some(entry) = self.take(earlier) {
            prefetch(entry.start.addr());
            self.keep(entry);
        }
    }

    /// Looks up the first `n` words, of which there is one at least, and asks for what they lead to. There is room for a volley.
    #[inline(always)]
    pub fn aim<L: Look>(&mut self, words: &[usize; LANES], n: usize, volleys: &mut Volleys, inner: Inner) {
        let (volley, asked) = volleys.free();
        // SAFETY: the words are in the heap's range; as for `drain_with`.
        let special = unsafe { L::aim(words.as_ptr(), n, self.heap.records(), inner, volley, asked) };
        let lanes = |bits: u8| (0..LANES).filter(move |lane| bits >> lane & 1 != 0);
        if special.others != 0 {
            volley.most = Most::Narrow;
            for lane in lanes(special.others) {
                let word = words[lane];
                let (mark, Marked { bytes, entry }) = self.heap.located(self.heap.look_up(word, inner.all));
                (volley.marks[lane], volley.bytes[lane]) = (mark, bytes);
                (volley.starts[lane], volley.descriptors[lane]) = (entry.start.addr(), entry.descriptor);
                asked.first[lane] = mark;
                if entry.descriptor != 0 {
                    asked.first[lane] = word;
                    self.heap.prefetch_rest(mark, word, bytes);
                }
                asked.beyond.iter_mut().for_each(|beyond| beyond[lane] = asked.first[lane]);
            }
        }
        let [.., fourth, _, sixth, _, eighth] = volley.starts;
        if fourth == eighth && sixth == eighth && n == LANES {
            // Not when it is scanned: as many others have come by then.
            self.see_known(volley, LANES - 1);
        }
        for (&mark, &first) in volley.marks.iter().zip(&asked.first) {
            prefetch(mark);
            prefetch(first);
        }
        if special.long != 0 {
            // Which lanes are long is hard to foresee.
            asked.beyond.as_flattened().iter().for_each(|&beyond| prefetch(beyond));
            if special.longer != 0 {
                for lane in lanes(special.longer) {
                    self.heap.prefetch_rest(volley.marks[lane], asked.first[lane], volley.bytes[lane]);
                }
            }
        }
        volleys.come(special.long != 0);
    }

    /// Marks the object of one lane; says what is to be scanned in it if it was not marked yet. The lanes in their order, so that what the
    /// newest word leads to comes first.
    #[inline(always)]
    pub fn mark_lane(&mut self, volley: &Volley, lane: usize) -> Option<Entry> {
        // SAFETY: it was aimed.
        if !self.heap.mark_byte(unsafe { volley.mark(lane) }) {
            return None;
        }
        self.tally.bytes += volley.bytes[lane];
        self.tally.objects += 1;
        Some(volley.entry(lane))
    }

    /// Marks what a volley found, and adds the addresses in it. Whether some of it was no narrow object.
    #[inline(always)]
    pub fn scan_volley<L: Look>(&mut self, words: &mut Words, volley: &Volley, ready: L::Ready) -> bool {
        let length = volley.entry(0).words();
        if L::TELLS_ALIKE && volley.alike && (1..=window::NARROW).contains(&length) {
            match length {
                ..=4 => self.scan_alike::<L, 4>(words, volley, length, ready),
                5..=8 => self.scan_alike::<L, 8>(words, volley, length, ready),
                9..=12 => self.scan_alike::<L, 12>(words, volley, length, ready),
                _ => self.scan_alike::<L, { window::NARROW }>(words, volley, length, ready),
            }
            return false;
        }
        match volley.most {
            Most::Four => self.scan_lanes::<L, 4>(words, volley, ready),
            Most::Eight => self.scan_lanes::<L, 8>(words, volley, ready),
            Most::Narrow => self.scan_lanes::<L, { window::NARROW }>(words, volley, ready),
        }
    }

    /// The same, lane by lane: what has more than `MOST` words is scanned as what is wide.
    #[inline(always)]
    fn scan_lanes<L: Look, const MOST: usize>(&mut self, words: &mut Words, volley: &Volley, ready: L::Ready) -> bool {
        let mut is_long = false;
        // Of its own: as in `scan_alike`.
        let (heap, mut tally) = (self.heap, self.tally);
        let mut known = LANES;
        // No closure: one that is not inlined has no vector instructions.
        for lane in 0..LANES {
            // SAFETY: it was aimed.
            if !heap.mark_byte(unsafe { volley.mark(lane) }) {
                known = lane;
                continue;
            }
            tally.bytes += volley.bytes[lane];
            tally.objects += 1;
            let entry = volley.entry(lane);
            let length = entry.words();
            if length <= MOST {
                // The processor asks for the memory of words that are not wanted, too: nobody has asked for a leaf's, which may never have been written.
                let first = select_unpredictable(length == 0, NO_RECORD.0.as_ptr().cast(), entry.first());
                // SAFETY: as in `drain_with`; the caller has seen to room for a piece.
                unsafe {
                    words.grow(if MOST == window::NARROW {
                        L::collect_narrow(first, length, ready, words.top())
                    } else {
                        L::collect::<MOST>(first, length, ready, words.top())
                    });
                }
            } else {
                is_long |= self.scan_other::<L>(entry, words);
            }
        }
        self.tally = tally;
        if known < LANES {
            self.see_known(volley, known);
        }
        is_long
    }

    /// What this lane's word leads to was marked before, if there is an object.
    #[inline(always)]
    fn see_known(&mut self, volley: &Volley, lane: usize) {
        // SAFETY: it was aimed.
        if self.heap.is_marked(unsafe { volley.mark(lane) }) {
            self.known = volley.starts[lane];
        }
    }

    /// The same for a volley whose objects are alike, with so many words, `MOST` at most: one mask is enough for them.
    #[inline(always)]
    fn scan_alike<L: Look, const MOST: usize>(
        &mut self,
        words: &mut Words,
        volley: &Volley,
        length: usize,
        ready: L::Ready,
    ) {
        // SAFETY: as in `drain_with`.
        let length = unsafe { L::length::<MOST>(length) };
        // Of its own: a mark that is stored could be any byte that others see.
        let heap = self.heap;
        let (mut top, mut objects, mut known) = (words.top(), 0, LANES);
        for_each_lane!(lane => {
            // SAFETY: it was aimed.
            if heap.mark_byte(unsafe { volley.mark(lane) }) {
                objects += 1;
                // SAFETY: as in `drain_with`; the caller has seen to room for a piece.
                unsafe { top = top.add(L::collect_alike::<MOST>(volley.entry(lane).first(), length, ready, top)) };
            } else {
                known = lane;
            }
        });
        // SAFETY: so many were written.
        unsafe { words.grow(top.offset_from_unsigned(words.top())) };
        self.tally.objects += objects;
        self.tally.bytes += objects * volley.bytes[0];
        if known < LANES {
            self.see_known(volley, known);
        }
    }

    /// Takes the place that has waited longest out of the queue, which is not empty. `empty_at` is as in the marker.
    #[inline(always)]
    pub fn take_waiting(&mut self, queue: &mut [H::Place; QUEUE], empty_at: &mut usize) -> H::Place {
        let waiting = self.at.wrapping_sub(*empty_at).min(QUEUE);
        let slot = self.at.wrapping_sub(waiting);
        *empty_at = slot.wrapping_add(1);
        core::mem::replace(&mut queue[slot % QUEUE], self.heap.nowhere())
    }

    /// Takes all places out of the queue, as [`Hot::found_grey`] does.
    #[inline(never)]
    pub fn mark_waiting_grey(&mut self, queue: &mut [H::Place; QUEUE], empty_at: &mut usize) {
        let mut waiting = ToWait::<QUEUE>::default();
        while self.at != *empty_at {
            let place = self.take_waiting(queue, empty_at);
            self.mark_grey(place, &mut waiting);
        }
        self.heap.wait(waiting.all());
    }

    /// Marks what an array's words refer to, of which most refer to leaves.
    #[inline(always)]
    pub fn found_leaves<L: Look, const QUEUED: bool>(
        &mut self,
        queue: &mut [H::Place; QUEUE],
        words: &mut [usize],
        inner: Inner,
    ) {
        let mut located = Located::new();
        let (clusters, rest) = words.as_chunks_mut::<TOGETHER>();
        let mut one = |hot: &mut Self, word: usize| {
            let place = hot.heap.look_up(word, inner.all);
            hot.found_leaf::<QUEUED>(queue, place, word);
        };
        let records = self.heap.records();
        // Long leaves have a block each, or more, whose records are not in the nearer caches.
        let mut is_apart = false;
        for i in 0..clusters.len() {
            if is_apart && let Some(later) = clusters.get(i + CLUSTERS_AHEAD) {
                for &word in later {
                    prefetch(records.of(word));
                }
            }
            let cluster = &mut clusters[i];
            let mut left = TOGETHER;
            if let Some(cells) = self.heap.cells_around(cluster[NEWEST])
                && cells.words == 0
                // SAFETY: as for `drain_with`.
                && let Some(others) = unsafe { L::locate(cluster, &cells, inner, &mut located) }
            {
                self.mark_located(&cells, &located);
                left = others;
            }
            is_apart = left == TOGETHER;
            cluster[..left].iter().for_each(|&word| one(self, word));
        }
        rest.iter().for_each(|&word| one(self, word));
    }

    /// Marks what was located; says which of it was not marked yet, by a bit for each.
    #[inline(always)]
    pub fn mark_located(&mut self, cells: &Cells, located: &Located) -> u8 {
        let mut marked = 0u8;
        // Of its own: as in `scan_alike`.
        let heap = self.heap;
        for (i, &number) in located.numbers.iter().enumerate() {
            // SAFETY: it was found to be a cell.
            if heap.mark_byte(unsafe { cells.mark(number) }) {
                marked |= 1 << i;
            }
        }
        let objects = marked.count_ones() as usize;
        self.tally.objects += objects;
        self.tally.bytes += objects * cells.bytes;
        marked
    }

    /// Moves the newest words to the clusters that wait, or marks them if they are leaves, if what they refer to lies in one block. False where it does not, or they are too
    /// few: then nothing happened. There is room.
    #[inline(always)]
    pub fn take_cluster<L: Look, const QUEUED: bool, const AIMED: bool>(
        &mut self,
        words: &mut Words,
        clusters: &mut Clusters,
        of: Of,
        inner: Inner,
    ) -> bool {
        let Some(cluster) = words.newest::<TOGETHER>() else { return false };
        if !clusters.guess(of).is_likely() {
            return false;
        }
        let (place, located) = clusters.free();
        let Some(cells) = self.heap.cells_around(cluster[NEWEST]).filter(|cells| of == Of::Array || cells.words == 0)
        else {
            clusters.guess(of).see(false);
            return false;
        };
        // SAFETY: as for `drain_with`.
        let Some(left) = (unsafe { L::locate(cluster, &cells, inner, located) }) else {
            clusters.guess(of).see(false);
            return false;
        };
        words.drop_newest(TOGETHER - left);
        if cells.words == 0 {
            // Their mark bytes lie close together, and their memory is not looked at.
            self.mark_located(&cells, located);
            clusters.guess(of).see(true);
        } else {
            *place = cells;
            clusters.come(QUEUED);
            if !AIMED {
                clusters.guess(of).see(true);
            }
        }
        true
    }

    /// Marks a cluster, and adds the addresses in its objects.
    #[inline(always)]
    pub fn scan_cluster<L: Look>(&mut self, words: &mut Words, (cells, located): &(Cells, Located), ready: L::Ready) {
        let marked = self.mark_located(cells, located);
        // The newest word's object last, so that what is in it comes first.
        // SAFETY: as in `drain_with`; the caller has seen to room.
        unsafe {
            if marked == u8::MAX {
                words.grow(L::collect_each(&located.starts, cells.words, ready, words.top()));
                return;
            }
            let mut rest = marked;
            while rest != 0 {
                let start = located.starts[rest.trailing_zeros() as usize];
                let start = core::ptr::with_exposed_provenance(start);
                words.grow(L::collect_narrow(start, cells.words, ready, words.top()));
                rest &= rest - 1;
            }
        }
    }

    /// As [`Hot::found`] for an array's words, of which most refer to leaves: they need neither the queue (their mark bytes lie close
    /// together, or the processor fetches several at once) nor the stack. Where objects differ, the branch would be hard to foresee.
    #[inline(always)]
    pub fn found_leaf<const QUEUED: bool>(&mut self, queue: &mut [H::Place; QUEUE], place: H::Place, word: usize) {
        if !self.heap.is_leaf(place) {
            return self.found::<QUEUED>(queue, place, word);
        }
        if let Some(bytes) = self.heap.mark_leaf(place) {
            self.tally.bytes += bytes;
            self.tally.objects += 1;
        }
    }

    /// Puts what is to be scanned in an object on the stack.
    #[inline(always)]
    pub fn keep(&mut self, entry: Entry) {
        // Whether an object must be scanned is hard to foresee: no branch.
        if !self.stack.push_if(entry, entry.descriptor != 0) {
            self.overflowed |= self.refused.replace(entry).is_some();
        }
    }

    #[inline(always)]
    pub fn mark(&mut self, place: H::Place) {
        if let Some(entry) = self.take(place) {
            self.keep(entry);
        }
    }
}

/// Blocks that are to wait, a few at a time.
struct ToWait<const MOST: usize> {
    blocks: [usize; MOST],
    n: usize,
}

impl<const MOST: usize> Default for ToWait<MOST> {
    fn default() -> Self {
        Self { blocks: [0; MOST], n: 0 }
    }
}

impl<const MOST: usize> ToWait<MOST> {
    /// Adds one if `wanted`, without a branch on that. There is room.
    #[inline(always)]
    fn add_if(&mut self, block: usize, wanted: bool) {
        self.blocks[self.n] = block;
        self.n += usize::from(wanted);
    }

    #[inline(always)]
    fn all(&self) -> &[usize] {
        &self.blocks[..self.n]
    }
}

/// Whether objects lie near those that refer to them: they do where a structure was made in the order in which it is marked.
#[derive(Clone, Copy, Default)]
pub struct Locality {
    /// How often they did not, less how often they did, lately.
    far: i32,
}

impl Locality {
    const MEMORY: i32 = 8;

    /// They do not, as far as is known.
    pub const FAR: Self = Self { far: Self::MEMORY };

    /// Two addresses that were found one after the other, so many bytes apart.
    #[inline(always)]
    pub fn see(&mut self, apart: usize) {
        // In tests, which have small heaps, most is far.
        const NEAR: usize = if cfg!(debug_assertions) { 1 << 10 } else { 1 << 18 };
        self.far = (self.far + if apart < NEAR { -1 } else { 1 }).clamp(-Self::MEMORY, Self::MEMORY);
    }

    pub fn is_far(self) -> bool {
        self.far > 0
    }
}

/// Whether it is worth it that blocks wait until they have more grey objects: where many of a block's are found, by then. A block with few is come back to for others,
/// and each time its marks and its pages have gone from the caches.
#[derive(Clone, Copy, Default)]
pub struct Crowd {
    /// Cells of the blocks that were visited lately, and grey objects in them.
    cells: usize,
    objects: usize,
    /// Cells that were to be fewer, or could have been more, for as many objects: the latest count.
    balance: isize,
    /// They were too many.
    is_given_up: bool,
}

impl Crowd {
    /// Of so many cells one is to be a grey object.
    const SPARSE: usize = 3;
    /// Cells after which this is looked at; and when the last block of the heap was passed.
    const LOOK: usize = 8192;
    /// What is found early in a cycle may lead to much, and is little: of lists and trees, some five hundred objects.
    const PATIENCE: isize = 2 * Self::LOOK as isize;
    /// Where many were met until now, some blocks with few come in between.
    const MOST: isize = 4 * Self::LOOK as isize;

    /// Some blocks were visited.
    pub fn see(&mut self, visit: Visit) {
        if visit.wrapped || self.cells >= Self::LOOK {
            let spared = (self.objects * Self::SPARSE) as isize - self.cells as isize;
            self.balance = (self.balance + spared).min(Self::MOST);
            self.is_given_up |= self.balance <= -Self::PATIENCE;
            (self.cells, self.objects) = (0, 0);
        }
        self.cells += visit.cells;
        self.objects += visit.objects;
    }

    /// Whether blocks are to wait.
    pub fn is_worth_it(self) -> bool {
        !self.is_given_up
    }
}

/// Whether most batches of objects have one that is not narrow.
#[derive(Clone, Copy, Default)]
pub struct Width {
    /// How often they had one, less how often they had none, lately.
    wide: i32,
}

impl Width {
    /// A batch was scanned.
    #[inline(always)]
    pub fn see(&mut self, is_wide: bool) {
        const MEMORY: i32 = 8;
        self.wide = (self.wide + if is_wide { 1 } else { -1 }).clamp(-MEMORY, MEMORY);
    }

    #[inline(always)]
    pub fn is_wide(self) -> bool {
        self.wide > 0
    }
}

/// Whether much of what words refer to is not marked yet. It is where something is traced; where written memory is scanned once more, it is not.
#[derive(Clone, Copy, Default)]
pub struct Novelty {
    /// Rounds in a row in which little was not.
    low: u32,
}

impl Novelty {
    /// So many words were looked at, of which so many led to objects that were not marked yet.
    #[inline(always)]
    pub fn see(&mut self, words: usize, objects: usize) {
        const FEW: usize = 4;
        self.low = if objects * FEW < words { self.low.saturating_add(1) } else { 0 };
    }

    #[inline(always)]
    pub fn is_low(self) -> bool {
        const ROUNDS: u32 = 4;
        self.low >= ROUNDS
    }
}

/// An address in each cache line of so many bytes of an entry.
#[inline(always)]
fn lines_of(entry: Entry, bytes: usize) -> impl Iterator<Item = usize> {
    (0..bytes).step_by(LINE_WORDS * size_of::<usize>()).map(move |line| entry.start.addr() + line)
}

/// [`Look::collect_many`], with what is looked at later asked for before.
///
/// # Safety
/// As there.
#[inline(always)]
pub unsafe fn collect_wide<L: Look>(at: *const usize, n: usize, range: Range, out: *mut usize) -> usize {
    // What is looked at first is asked for by looking at it.
    for line in (window::WIDTH..n).step_by(LINE_WORDS) {
        prefetch(at.wrapping_add(line).addr());
    }
    // SAFETY: the caller's promise.
    unsafe { L::collect_many(at, n, range, out) }
}

/// [`collect_wide`] in the best form for the processor, for where the form is not known already.
///
/// # Safety
/// As there.
pub unsafe fn collect_best(at: *const usize, n: usize, range: Range, out: *mut usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    unsafe fn avx2(at: *const usize, n: usize, range: Range, out: *mut usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe { collect_wide::<window::Avx2>(at, n, range, out) }
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,avx512f,bmi1,bmi2,popcnt")]
    unsafe fn avx512(at: *const usize, n: usize, range: Range, out: *mut usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe { collect_wide::<window::Avx512>(at, n, range, out) }
    }
    // SAFETY: the caller's promise; the processor has what the form asks for.
    unsafe {
        match window::best() {
            #[cfg(target_arch = "x86_64")]
            Form::Avx2 | Form::Avx2Volleys => avx2(at, n, range, out),
            #[cfg(target_arch = "x86_64")]
            Form::Avx512 | Form::Avx512Volleys => avx512(at, n, range, out),
            _ => collect_wide::<Portable>(at, n, range, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn novelty_is_low_after_some_rounds_of_what_is_known_and_high_after_one_of_what_is_not() {
        let mut novelty = Novelty::default();
        for _ in 0..3 {
            (0..3).for_each(|_| novelty.see(64, 2));
            assert!(!novelty.is_low());
            (0..9).for_each(|_| novelty.see(64, 0));
            assert!(novelty.is_low());
            novelty.see(64, 40);
            assert!(!novelty.is_low());
        }
        // Rounds without words say nothing.
        (0..9).for_each(|_| novelty.see(0, 0));
        assert!(!novelty.is_low());
    }

    /// Takes such blocks so often, of 64 cells each; behind the last one the heap ends.
    fn take(crowd: &mut Crowd, times: usize, objects: usize) {
        (0..times).for_each(|_| crowd.see(Visit { cells: 64, objects, wrapped: false }));
        crowd.see(Visit { wrapped: true, ..Visit::default() });
    }

    #[test]
    fn blocks_wait_while_many_of_their_cells_are_grey() {
        let mut crowd = Crowd::default();
        // A little below what is wanted, from the beginning.
        take(&mut crowd, 1000, 21);
        assert!(crowd.is_worth_it());
        // What leads to it from the roots: a few at a time.
        (0..100).for_each(|_| take(&mut crowd, 2, 2));
        assert!(crowd.is_worth_it());
        take(&mut crowd, 10_000, 30);
        // Now and then a few more.
        (0..10).for_each(|_| {
            take(&mut crowd, 100, 4);
            take(&mut crowd, 100, 30);
        });
        assert!(crowd.is_worth_it());
    }

    #[test]
    fn they_do_not_where_few_are_found_at_a_time() {
        for objects in [1, 2, 6, 16] {
            let mut crowd = Crowd::default();
            // Also before the end of a large heap.
            for _ in 0..2000 {
                crowd.see(Visit { cells: 64, objects, wrapped: false });
            }
            assert!(!crowd.is_worth_it(), "{objects}");
            // For good.
            take(&mut crowd, 10_000, 64);
            assert!(!crowd.is_worth_it());
        }
    }
}
