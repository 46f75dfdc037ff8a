//! Notices when a file may have changed: written in place, replaced by a rename, or reached by a symbolic
//! link that now leads elsewhere, as Kubernetes swaps mounted configuration. Uses no CPU while nothing
//! happens.
//!
//! The kernel (inotify) watches files and folders, not paths. So every folder in which a part of the path may
//! be replaced is watched for names that come and go, every folder on the way for being moved itself, and the
//! file for being written; after each event the path is resolved anew. Only a different file at the end of it
//! counts as a change, whatever the events were.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use super::log;

/// The time without events of the kernel (50 ms) after which a change of the watched file is taken as
/// complete, since a file is usually written in several steps.
const SETTLED: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Maximum number of waits for 50 ms without events of the watched file (`SETTLED`), so that constant events
/// cannot put off a change for ever.
const SETTLING_ROUNDS_MAX: u32 = 20;
/// The interval at which the watched file is checked if the kernel cannot report changes.
const POLLING: Duration = Duration::from_secs(1);
/// Maximum number of symbolic links that are followed in a path, as in Linux.
const LINKS_MAX: usize = 40;
/// Maximum number of times that a path is resolved again because it changed during the resolution.
const WALKS_MAX: u32 = 5;

/// A watch that reports when one file may have changed, by events of the kernel or by polling.
pub(super) struct FileWatch {
    path: PathBuf,
    /// The kernel's watch (inotify) over the file; none if the kernel does not report changes.
    inotify: Option<OwnedFd>,
    /// The metadata of the file when it was last checked; none if it could not be read then.
    seen: Option<Stamp>,
}

/// The metadata that distinguish one state of a file from another, without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
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
        })
    }
}

impl FileWatch {
    /// Begins to watch a file. Every change after this call is reported, so a caller that reads the file
    /// afterwards misses none.
    pub fn new(path: &Path) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let mut watch = Self { path, inotify: None, seen: None };
        if let Err(error) = watch.arm() {
            watch.complain(&error);
        }
        watch.seen = Stamp::of(&watch.path);
        watch
    }

    /// Returns the descriptor that becomes readable when the kernel reports an event that may be a change of
    /// the file; `None` if the file must be polled.
    pub fn handle(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(|inotify| inotify.as_fd())
    }

    /// Returns the longest time after which the file must be checked without an event of the kernel; `None`
    /// if the kernel reports changes.
    pub fn patience(&self) -> Option<Duration> {
        self.inotify.is_none().then_some(POLLING)
    }

    /// Returns whether the file has changed since the last check, once no events have come for 50 ms. The
    /// caller calls it after an event, or when [`FileWatch::patience`] has passed.
    pub fn has_changed(&mut self) -> bool {
        self.settle();
        let was_told = self.inotify.is_some();
        if let Err(error) = self.arm()
            && was_told
        {
            self.complain(&error);
        }
        // Read after arming the watch: a later change is reported.
        let stamp = Stamp::of(&self.path);
        std::mem::replace(&mut self.seen, stamp) != stamp
    }

    fn complain(&self, error: &io::Error) {
        let path = self.path.display();
        log::line(&format!(
            "the kernel reports no changes of {path} ({error}): weir looks at it every {POLLING:?}"
        ));
    }

    /// Waits until the kernel has reported no events of the watched file for 50 ms (`SETTLED`), at most
    /// `SETTLING_ROUNDS_MAX` times.
    fn settle(&self) {
        let Some(inotify) = &self.inotify else { return };
        for _ in 0..SETTLING_ROUNDS_MAX {
            discard_events(inotify);
            let mut handles = [PollFd::new(inotify, PollFlags::IN)];
            // An interruption only makes the round shorter.
            if matches!(poll(&mut handles, Some(&SETTLED)), Ok(0)) {
                return;
            }
        }
    }

    /// Resolves the path of the file and sets watches (inotify) on the file and all folders on the way to it.
    /// Fails if the kernel permits no watch, or the path changes all the time.
    fn arm(&mut self) -> io::Result<()> {
        self.inotify = None;
        let mut way = Way::walk(&self.path);
        for _ in 0..WALKS_MAX {
            let inotify = way.watch(&self.path)?;
            // A move before the watch was set is not reported: then the path resolves differently now.
            let again = Way::walk(&self.path);
            if again == way {
                self.inotify = Some(inotify);
                return Ok(());
            }
            way = again;
        }
        Err(io::Error::other("its path changes all the time"))
    }
}

/// Reads and drops all pending events of the watched file; only that there were some matters.
fn discard_events(inotify: &OwnedFd) {
    let mut room = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(inotify, &mut room);
    while reader.next().is_ok() {}
}

/// The folders through which the path of a watched file leads.
#[derive(Debug, Default, PartialEq, Eq)]
struct Way {
    /// Folders in which a symbolic link of the path, or the file itself, may be replaced by another one of
    /// that name.
    turns: BTreeSet<PathBuf>,
    /// All other folders that the path leads through.
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
                    way.turns.insert(at.clone());
                    if target.is_absolute() {
                        at = PathBuf::from("/");
                    }
                    names(&target).into_iter().rev().for_each(|name| ahead.push_front(name));
                }
                _ if ahead.is_empty() || !next.is_dir() => {
                    // Here is the file; or the end of the way, if the next part does not exist.
                    way.turns.insert(at);
                    break;
                }
                _ => {
                    way.passed.insert(at);
                    at = next;
                }
            }
        }
        way.passed.retain(|folder| !way.turns.contains(folder));
        way
    }

    fn watch(&self, file: &Path) -> io::Result<OwnedFd> {
        let moved = WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF | WatchFlags::ONLYDIR;
        let names = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::MOVED_TO;
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        for folder in &self.turns {
            inotify::add_watch(&inotify, folder, names | moved)?;
        }
        for folder in &self.passed {
            inotify::add_watch(&inotify, folder, moved)?;
        }
        // A missing file is a state like any other. So is an unreadable one, but then only its folder reports
        // a change.
        let _ = inotify::add_watch(&inotify, file, WatchFlags::CLOSE_WRITE);
        Ok(inotify)
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
    use std::os::unix::fs::symlink;

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

    /// True if the kernel reports an event within 30 seconds, which only a broken run exceeds.
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

    fn changes_by(watch: &mut FileWatch, change: impl FnOnce()) -> bool {
        assert!(is_quiet(watch), "nothing has happened yet");
        change();
        is_told(watch) && watch.has_changed()
    }

    #[test]
    fn a_file_that_is_written_replaced_deleted_and_made_again() {
        let folder = Folder::new("plain");
        let file = folder.file("quotas", "one");
        let mut watch = FileWatch::new(&file);
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

    /// True if a change is noticed, with an unrelated event in the folder before it.
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
        let mut watch = FileWatch::new(&mount.join("quotas"));
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
        let mut watch = FileWatch::new(&folder.0.join("etc/weir/quotas"));
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
        let mut watch = FileWatch::new(&file);
        fs::write(&neighbour, "a line").expect("it can be written");
        assert!(is_quiet(&watch), "another file is written, and nobody is woken");
        folder.file("new", "");
        assert!(is_told(&watch) && !watch.has_changed());
        assert_eq!(watch.patience(), None);
    }

    #[test]
    fn where_the_kernel_does_not_tell_the_file_is_looked_at() {
        let folder = Folder::new("untold");
        let file = folder.file("quotas", "one");
        let mut watch = FileWatch { inotify: None, ..FileWatch::new(&file) };
        assert_eq!(watch.patience(), Some(POLLING));
        folder.file("quotas", "other");
        assert!(watch.has_changed() && !watch.has_changed());
        // The kernel's reports are used again as soon as they work.
        assert_eq!((watch.patience(), watch.handle().is_some()), (None, true));
    }

    #[test]
    fn a_way_that_leads_in_circles_ends() {
        let folder = Folder::new("circle");
        symlink("b", folder.0.join("a")).expect("a link");
        symlink("a", folder.0.join("b")).expect("a link");
        let way = Way::walk(&folder.0.join("a"));
        assert!(way.turns.contains(&folder.0));
        assert!(FileWatch::new(&folder.0.join("a")).handle().is_some());
    }
}
