//! Notices when a file may have changed: written in place, replaced by a rename, or reached by a symbolic
//! link that now leads elsewhere, as Kubernetes swaps mounted configuration.
//!
//! The kernel (inotify) watches files and folders, not paths. So every folder in which a part of the path may
//! be replaced is watched for names that come and go, every folder on the way for being moved itself, and the
//! file for being written; after each event about them the path is resolved anew. Only a different file at
//! the end of it counts as a change, whatever the events were.
//!
//! A file that somebody still writes is not reported: whatever was read would be its beginning. Whoever
//! creates a file or writes to it has it open, so the change counts once the file is closed.
//!
//! The kernel reports neither what other machines write to a network file system nor new permissions. Hence
//! the file is also looked at every 10 s, and a change found like that counts once nothing more changes for a
//! second.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

use super::clock::Clock;
use super::log;
use crate::values::Timestamp;

/// The time without events of the kernel (50 ms) after which a change of the watched file is taken as
/// complete, since a file is usually written in several steps.
const SETTLED: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Maximum number of times that weir waits for 50 ms without events of the watched file (`SETTLED`), since
/// constant events would otherwise put off the report of a change for ever; then the file is taken as it is.
const SETTLING_ROUNDS_MAX: u32 = 20;
/// The time (5 s) after which a watched file that somebody has open for writing, and that has not changed
/// meanwhile, counts as complete.
const WRITING: Duration = Duration::from_secs(5);
/// The interval at which the watched file is checked besides the events of the kernel.
const LOOKING: Duration = Duration::from_secs(10);
/// The interval at which the watched file is checked if the kernel cannot report changes; also the time for
/// which a file must stay as it is before a change of which the kernel reported nothing counts.
const POLLING: Duration = Duration::from_secs(1);
/// Maximum number of symbolic links that are followed in one path, as in Linux; a further link is not followed,
/// but taken as a folder or as the file itself.
const LINKS_MAX: usize = 40;
/// Maximum number of times that a path is resolved again because it changed during the resolution. After that
/// many, the kernel's reports are not used, and the file is looked at every second (`POLLING`).
const WALKS_MAX: u32 = 5;

/// A watch that reports when one file may have changed, by events of the kernel and by looking at it from
/// time to time.
pub(super) struct FileWatch {
    path: PathBuf,
    /// The kernel's watch over the file; none if the kernel does not report changes.
    events: Option<Events>,
    /// The metadata of the file when a change was last reported, the file was read for another reason, or the
    /// watch began; none if it could not be read then.
    seen: Option<Stamp>,
    /// The change that was found and is not reported yet, because the file may not be complete; none if no
    /// change waits.
    pending: Option<Pending>,
    clock: Clock,
}

/// A change of a watched file that may not be complete.
struct Pending {
    /// The metadata of the changed file; none if it cannot be read.
    stamp: Option<Stamp>,
    /// The moment from which on the change is reported, if the file stays as it is.
    due: Timestamp,
}

/// The state in which an event of the kernel leaves a watched file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// A process has the file open, and is writing it.
    Writing,
    /// The file was closed after it was written, or it was replaced or removed.
    Complete,
}

/// The metadata that distinguish one state of a file from another, without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    /// The last change of the file's data or of its permissions, which may make it readable.
    changed: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        // Something that is no regular file, such as a pipe, has no states.
        let data = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some(Self {
            device: data.dev(),
            inode: data.ino(),
            bytes: data.len(),
            modified: (data.mtime(), data.mtime_nsec()),
            changed: (data.ctime(), data.ctime_nsec()),
        })
    }
}

impl FileWatch {
    /// Begins to watch a file. Every change after this call is reported, so a caller that reads the file
    /// afterwards misses none. If the kernel permits no watch, a log line says so, and the file is looked at
    /// every second (`POLLING`).
    pub fn new(path: &Path, clock: Clock) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let mut watch = Self { path, events: None, seen: None, pending: None, clock };
        if let Err(error) = watch.arm() {
            watch.complain(&error);
        }
        watch.seen = Stamp::of(&watch.path);
        watch
    }

    /// Returns the absolute path of the watched file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the descriptor that becomes readable when the kernel reports an event that may be a change of
    /// the file; `None` if the kernel reports none.
    pub fn handle(&self) -> Option<BorrowedFd<'_>> {
        self.events.as_ref().map(|events| events.inotify.as_fd())
    }

    /// Returns the longest time after which [`FileWatch::has_changed`] must be called, also without an event
    /// of the kernel.
    pub fn patience(&self) -> Duration {
        let usual = if self.events.is_some() { LOOKING } else { POLLING };
        let due = self.pending.as_ref().map(|pending| pending.due.since(self.clock.now().monotonic));
        due.map_or(usual, |due| due.min(usual))
    }

    /// Returns whether the file has changed since the last change that was reported (or the last call of
    /// [`FileWatch::note_read`]), and is complete; false also for a change that may not be complete yet, which a
    /// later call reports. Waits until no events have come for 50 ms, at most 1 s. The caller calls it after an
    /// event, and when [`FileWatch::patience`] has passed; further calls do no harm.
    pub fn has_changed(&mut self) -> bool {
        let mut news = self.settle();
        if news.is_some() || self.events.is_none() || Stamp::of(&self.path) != self.seen {
            let before = self.events.take();
            let had_events = before.is_some();
            let mut armed = self.arm();
            // Only the former watch knows of what happened until now.
            news = before.and_then(|before| before.news()).or(news);
            // The numbers of a user's watches and of their descriptors are limited, and the former ones are
            // gone by now.
            let is_scarce =
                |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENOSPC));
            if had_events && armed.as_ref().is_err_and(is_scarce) {
                armed = self.arm();
            }
            if let Err(error) = armed
                && had_events
            {
                self.complain(&error);
            }
        }
        // Read after arming the watch: a later change is reported.
        self.compare(Stamp::of(&self.path), news)
    }

    /// Returns whether the file, whose metadata are `stamp` now, has changed and is complete; if it may not be
    /// complete, keeps the change to be reported later (`pending`). `news` is the last event of the kernel, if
    /// there was one.
    fn compare(&mut self, stamp: Option<Stamp>, news: Option<News>) -> bool {
        let pending = self.pending.take();
        if stamp == self.seen {
            return false;
        }
        let now = self.clock.now().monotonic;
        let due = match (news, pending) {
            (Some(News::Complete), _) => now,
            (Some(News::Writing), _) => now.after(WRITING),
            (None, Some(pending)) if pending.stamp == stamp => pending.due,
            (None, Some(pending)) => pending.due.max(now.after(POLLING)),
            (None, None) => now.after(POLLING),
        };
        if due > now {
            self.pending = Some(Pending { stamp, due });
            return false;
        }
        self.seen = stamp;
        true
    }

    /// Takes the state that the file has now as reported, because the caller is about to read the file for another
    /// reason. A change after this call is reported, also one that completes what the caller reads.
    pub fn note_read(&mut self) {
        self.pending = None;
        self.seen = Stamp::of(&self.path);
    }

    fn complain(&self, error: &io::Error) {
        let path = self.path.display();
        log::line(&format!(
            "the kernel reports no changes of {path} ({error}): weir looks at it every {POLLING:?}"
        ));
    }

    /// Waits until the kernel has reported no events for 50 ms (`SETTLED`), at most `SETTLING_ROUNDS_MAX`
    /// times. Returns what the last event about the watched file says; `None` at once if there was none.
    fn settle(&self) -> Option<News> {
        let events = self.events.as_ref()?;
        let mut last = events.news()?;
        for _ in 0..SETTLING_ROUNDS_MAX {
            let mut handles = [PollFd::new(&events.inotify, PollFlags::IN)];
            // An interruption only makes the round shorter.
            if matches!(poll(&mut handles, Some(&SETTLED)), Ok(0)) {
                break;
            }
            last = events.news().unwrap_or(last);
        }
        Some(last)
    }

    /// Resolves the path of the file and sets watches (inotify) on the file and all folders on the way to it.
    /// Fails if the kernel permits no watch, or the path changes all the time.
    fn arm(&mut self) -> io::Result<()> {
        self.events = None;
        let mut way = Way::walk(&self.path);
        for _ in 0..WALKS_MAX {
            let events = Events::of(&way, &self.path)?;
            // A move before the watch was set is not reported: then the path resolves differently now.
            let again = Way::walk(&self.path);
            if again == way {
                self.events = Some(events);
                return Ok(());
            }
            way = again;
        }
        Err(io::Error::other("its path changes all the time"))
    }
}

/// Checks that a file can be read once more: a pipe cannot, since its content is gone and opening it may wait
/// for ever for somebody who writes. A missing file passes, since reading it reports that it is missing. The
/// error is a text for the operator.
pub(super) fn check_rereadable(path: &Path) -> Result<(), String> {
    match fs::metadata(path) {
        Ok(data) if !data.is_file() && !data.is_dir() => {
            Err("only a regular file can be read again, and this is a pipe or a device".to_owned())
        }
        _ => Ok(()),
    }
}

/// The kernel's watch (inotify) over a file and all folders on the way to it, and the way as it was when the
/// watch was set.
struct Events {
    inotify: OwnedFd,
    /// The number of the watch over the file itself; none if it is missing or unreadable.
    file: Option<i32>,
    /// The number of the watch over each folder on the way, with the folder.
    folders: Vec<(i32, PathBuf)>,
    way: Way,
}

impl Events {
    fn of(way: &Way, file: &Path) -> io::Result<Self> {
        let moved = WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF | WatchFlags::ONLYDIR;
        let names = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::MOVED_TO;
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let mut folders = Vec::new();
        for folder in way.turns.keys() {
            // A file may be created, written and closed before there is a watch over the file itself.
            let closed = if way.last == *folder { WatchFlags::CLOSE_WRITE } else { WatchFlags::empty() };
            let number = inotify::add_watch(&inotify, folder, names | moved | closed)?;
            folders.push((number, folder.clone()));
        }
        for folder in &way.passed {
            folders.push((inotify::add_watch(&inotify, folder, moved)?, folder.clone()));
        }
        // A missing file is a state like any other. So is an unreadable one, but then only its folder reports
        // a change.
        let file = inotify::add_watch(&inotify, file, WatchFlags::MODIFY | WatchFlags::CLOSE_WRITE).ok();
        Ok(Self { inotify, file, folders, way: way.clone() })
    }

    /// Reads all events that the kernel has reported. Returns what the last one about the watched file, or
    /// the way to it, says; `None` if there was none.
    fn news(&self) -> Option<News> {
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut room);
        let mut last = None;
        while let Ok(event) = reader.next() {
            last = self.news_of(&event).or(last);
        }
        last
    }

    fn news_of(&self, event: &inotify::Event<'_>) -> Option<News> {
        let what = event.events();
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            return Some(News::Complete);
        }
        // The end of a watch says nothing that the event before it has not said.
        if what.contains(ReadFlags::IGNORED) {
            return None;
        }
        if self.file == Some(event.wd()) {
            let is_written = what.contains(ReadFlags::MODIFY);
            return Some(if is_written { News::Writing } else { News::Complete });
        }
        let (_, folder) = self.folders.iter().find(|(number, _)| *number == event.wd())?;
        let Some(name) = event.file_name() else { return Some(News::Complete) };
        let name = OsStr::from_bytes(name.to_bytes());
        if !self.way.turns.get(folder).is_some_and(|names| names.contains(name)) {
            return None;
        }
        let is_open = what.contains(ReadFlags::CREATE) && is_plain(&folder.join(name));
        Some(if is_open { News::Writing } else { News::Complete })
    }
}

/// True for a regular file with a single name. The process that creates such a file has it open, so that the
/// kernel reports its closing, unlike that of a link or a folder.
fn is_plain(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|data| data.is_file() && data.nlink() == 1)
}

/// The folders through which the path of a watched file leads, links followed. The path is resolved anew after
/// each event, since a change of one of them may lead to another file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Way {
    /// Folders in which a symbolic link of the path, or the file itself, may be replaced by another one of the
    /// same name, each with these names.
    turns: BTreeMap<PathBuf, BTreeSet<OsString>>,
    /// The folder that should hold the file or, if a part of the path does not exist, the first part that is
    /// missing.
    last: PathBuf,
    /// The folders that the path leads through, besides those in `turns`.
    passed: BTreeSet<PathBuf>,
}

impl Way {
    fn walk(path: &Path) -> Self {
        let mut way = Self::default();
        let mut at = PathBuf::from("/");
        let mut ahead: VecDeque<OsString> = names(path);
        let mut links = 0;
        while let Some(name) = ahead.pop_front() {
            if name == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&name);
            match fs::read_link(&next) {
                Ok(target) if links < LINKS_MAX => {
                    links += 1;
                    way.turns.entry(at.clone()).or_default().insert(name);
                    if target.is_absolute() {
                        at = PathBuf::from("/");
                    }
                    names(&target).into_iter().rev().for_each(|name| ahead.push_front(name));
                }
                _ if ahead.is_empty() || !next.is_dir() => {
                    // Here is the file; or the end of the way, if the next part does not exist.
                    way.turns.entry(at.clone()).or_default().insert(name);
                    way.last = at;
                    break;
                }
                _ => {
                    way.passed.insert(at);
                    at = next;
                }
            }
        }
        way.passed.retain(|folder| !way.turns.contains_key(folder));
        way
    }
}

fn names(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::unix::fs::symlink;
    use std::time::SystemTime;

    use super::*;

    /// A temporary folder for a test, removed when it is dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("weir-watch-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).expect("a folder can be made");
            Self(fs::canonicalize(path).expect("it was just made"))
        }

        fn file(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, text).expect("a file can be written");
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn watch(path: &Path) -> FileWatch {
        FileWatch::new(path, Clock::start())
    }

    /// True if the kernel reports an event within 30 s, far longer than it ever takes.
    fn is_told(watch: &FileWatch) -> bool {
        let handle = watch.handle().expect("the kernel tells");
        let mut handles = [PollFd::new(&handle, PollFlags::IN)];
        let long = Timespec { tv_sec: 30, tv_nsec: 0 };
        poll(&mut handles, Some(&long)).expect("it can be polled") == 1
    }

    fn is_quiet(watch: &FileWatch) -> bool {
        let handle = watch.handle().expect("the kernel tells");
        let mut handles = [PollFd::new(&handle, PollFlags::IN)];
        poll(&mut handles, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("it can be polled") == 0
    }

    /// True if the change that `watch` has found and not reported yet is reported once it is due, and only
    /// once.
    fn is_reported_when_due(watch: &mut FileWatch) -> bool {
        watch.pending.as_mut().expect("a change that is not reported yet").due = Timestamp::default();
        watch.patience().is_zero() && watch.has_changed() && !watch.has_changed()
    }

    fn changes_by(watch: &mut FileWatch, change: impl FnOnce()) -> bool {
        assert!(is_quiet(watch), "nothing has happened yet");
        change();
        is_told(watch) && watch.has_changed()
    }

    #[test]
    fn a_file_that_is_written_replaced_deleted_and_made_again() {
        let folder = Folder::new("plain");
        let file = folder.file("quotas", "one");
        let mut watch = watch(&file);
        assert!(changes_by(&mut watch, || {
            folder.file("quotas", "other");
        }));
        for text in ["a", "b"] {
            let new = folder.file("new", text);
            // The kernel reports the new name first; then the rename replaces the old file.
            assert!(changes_by_after(&mut watch, || fs::rename(&new, &file).expect("a rename")));
        }
        assert!(changes_by(&mut watch, || fs::remove_file(&file).expect("it is there")));
        assert!(changes_by(&mut watch, || {
            folder.file("quotas", "again");
        }));
        assert!(changes_by(&mut watch, || {
            folder.file("quotas", "and again");
        }));
    }

    /// True if `change` is noticed after an unrelated event in the folder, which alone is not reported as a
    /// change.
    fn changes_by_after(watch: &mut FileWatch, change: impl FnOnce()) -> bool {
        let idle = is_told(watch) && !watch.has_changed();
        idle && changes_by(watch, change)
    }

    #[test]
    fn links_that_lead_elsewhere() {
        let folder = Folder::new("links");
        let versions = folder.0.join("versions");
        for version in ["1", "2", "3"] {
            fs::create_dir_all(versions.join(version)).expect("a folder can be made");
            folder.file(&format!("versions/{version}/quotas"), version);
        }
        let mount = folder.0.join("mount");
        fs::create_dir(&mount).expect("a folder can be made");
        symlink("../versions/1", mount.join("..data")).expect("a link");
        symlink("..data/quotas", mount.join("quotas")).expect("a link");
        let mut watch = watch(&mount.join("quotas"));
        for version in ["2", "3"] {
            let swapped = changes_by(&mut watch, || {
                symlink(format!("../versions/{version}"), mount.join("..new")).expect("a link");
                fs::rename(mount.join("..new"), mount.join("..data")).expect("a rename");
            });
            assert!(swapped, "{version}");
        }
        // The file that the link pointed to before has no effect any more; the new one has.
        folder.file("versions/1/quotas", "longer");
        assert!(is_quiet(&watch));
        assert!(changes_by(&mut watch, || {
            folder.file("versions/3/quotas", "longer");
        }));
    }

    #[test]
    fn a_folder_that_is_replaced() {
        let folder = Folder::new("moved");
        for name in ["etc/weir", "new"] {
            fs::create_dir_all(folder.0.join(name)).expect("a folder can be made");
            folder.file(&format!("{name}/quotas"), name);
        }
        let mut watch = watch(&folder.0.join("etc/weir/quotas"));
        let [inner, old, new] = ["etc/weir", "old", "new"].map(|name| folder.0.join(name));
        assert!(changes_by(&mut watch, || {
            fs::rename(&inner, &old).expect("a rename");
            fs::rename(&new, &inner).expect("a rename");
        }));
        assert!(changes_by(&mut watch, || fs::remove_dir_all(folder.0.join("etc")).expect("it is there")));
        assert!(changes_by(&mut watch, || {
            fs::create_dir_all(&inner).expect("a folder can be made");
            folder.file("etc/weir/quotas", "made again");
        }));
    }

    #[test]
    fn neighbours_are_of_no_interest() {
        let folder = Folder::new("neighbours");
        let file = folder.file("quotas", "one");
        let neighbour = folder.file("log", "");
        let mut watch = watch(&file);
        fs::write(&neighbour, "a line").expect("it can be written");
        assert_eq!(watch.settle(), None, "another file is written");
        folder.file("new", "");
        assert!(is_told(&watch) && !watch.has_changed());
        assert_eq!(watch.patience(), LOOKING);
    }

    #[test]
    fn a_file_that_is_still_written_is_not_reported() {
        let folder = Folder::new("slow");
        let file = folder.file("quotas", "one");
        let mut watch = watch(&file);
        // Made anew, then written in place while something else happens in the folder.
        for makes_anew in [true, false] {
            if makes_anew {
                fs::remove_file(&file).expect("it is there");
            }
            let mut out = File::create(&file).expect("a file can be made");
            for part in ["a half ", "and another"] {
                out.write_all(part.as_bytes()).expect("it can be written");
                folder.file("neighbour", part);
                assert!(is_told(&watch) && !watch.has_changed(), "{makes_anew}, {part}");
            }
            assert!(!watch.has_changed() && watch.patience() <= WRITING);
            drop(out);
            assert!(is_told(&watch) && watch.has_changed() && !watch.has_changed());
            assert_eq!(fs::read(&file).expect("it is there"), b"a half and another");
        }
    }

    #[test]
    fn a_file_that_is_never_closed_is_reported_in_the_end() {
        let folder = Folder::new("open");
        let file = folder.0.join("quotas");
        let mut watch = watch(&file);
        let _open = File::create(&file).expect("a file can be made");
        assert!(is_told(&watch) && !watch.has_changed());
        assert!(is_reported_when_due(&mut watch));
    }

    #[test]
    fn a_change_that_was_read_already_is_not_reported() {
        let folder = Folder::new("read");
        let file = folder.file("quotas", "one");
        let mut watch = watch(&file);
        folder.file("quotas", "other");
        watch.note_read();
        assert!(is_told(&watch) && !watch.has_changed());
        assert!(changes_by(&mut watch, || {
            folder.file("quotas", "and another");
        }));

        // Only the beginning is read.
        let mut out = File::create(&file).expect("a file can be made");
        out.write_all(b"a half ").expect("it can be written");
        assert!(is_told(&watch) && !watch.has_changed());
        watch.note_read();
        assert_eq!(watch.patience(), LOOKING);
        assert!(!watch.has_changed());
        out.write_all(b"and another").expect("it can be written");
        drop(out);
        assert!(is_told(&watch) && watch.has_changed() && !watch.has_changed());
    }

    #[test]
    fn a_change_of_which_the_kernel_says_nothing_is_found() {
        let folder = Folder::new("unsaid");
        let file = folder.file("quotas", "one");
        let mut watch = watch(&file);
        let change = |seconds| {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            // The kernel reports a change of one of the two times as an access or a write.
            let times = fs::FileTimes::new().set_accessed(time).set_modified(time);
            File::open(&file).and_then(|file| file.set_times(times)).expect("it is the test's own");
        };
        change(1);
        assert!(is_quiet(&watch) && !watch.has_changed());
        assert!(watch.patience() <= POLLING);
        change(2);
        assert!(!watch.has_changed(), "it has changed again meanwhile");
        assert!(is_reported_when_due(&mut watch));
    }

    #[test]
    fn links_and_renames_are_complete_at_once() {
        let folder = Folder::new("whole");
        let file = folder.0.join("quotas");
        let other = folder.file("other", "text");
        let mut watch = watch(&file);
        assert!(changes_by(&mut watch, || symlink(&other, &file).expect("a link")));
        assert!(changes_by(&mut watch, || fs::remove_file(&file).expect("it is there")));
        assert!(changes_by(&mut watch, || fs::hard_link(&other, &file).expect("a link")));
        assert!(changes_by(&mut watch, || fs::rename(&file, folder.0.join("away")).expect("a rename")));
    }

    #[test]
    fn a_pipe_is_not_read_again() {
        let folder = Folder::new("pipe");
        assert_eq!(check_rereadable(&folder.file("quotas", "one")), Ok(()));
        assert_eq!(check_rereadable(&folder.0.join("missing")), Ok(()));
        assert!(check_rereadable(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn where_the_kernel_does_not_tell_the_file_is_looked_at() {
        let folder = Folder::new("untold");
        let file = folder.file("quotas", "one");
        let mut watch = FileWatch { events: None, ..watch(&file) };
        assert_eq!(watch.patience(), POLLING);
        folder.file("quotas", "other");
        assert!(!watch.has_changed() && is_reported_when_due(&mut watch));
        // The kernel's reports are used again as soon as they work.
        assert_eq!((watch.patience(), watch.handle().is_some()), (LOOKING, true));
    }

    #[test]
    fn a_way_that_leads_in_circles_ends() {
        let folder = Folder::new("circle");
        symlink("b", folder.0.join("a")).expect("a link");
        symlink("a", folder.0.join("b")).expect("a link");
        let way = Way::walk(&folder.0.join("a"));
        assert!(way.turns.contains_key(&folder.0));
        assert!(watch(&folder.0.join("a")).handle().is_some());
    }
}
