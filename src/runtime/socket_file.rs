//! The files of Unix sockets: they are made at the start, and removed at the end only if they are still this
//! process's own.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use socket2::{Domain, SockAddr, Socket, Type};

/// The file of a Unix socket on which this process listens.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// A handle of the file itself. While it is open, the kernel gives the file's inode number to no other
    /// file, so the number identifies the file even after it was removed.
    own: OwnedFd,
}

impl SocketFile {
    /// Opens and remembers the file that is at this path now, as this process's own. `None` if there is none.
    pub fn at(path: &Path) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let own = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        Some(Self { path: path.to_owned(), own })
    }

    /// Removes the file, unless another process has put a socket of its own at the path meanwhile: a weir
    /// that is started while this one drains does so.
    pub fn remove(&self) {
        let (own, found) = (rustix::fs::fstat(&self.own), rustix::fs::lstat(&self.path));
        if let (Ok(own), Ok(found)) = (own, found)
            && (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns a Unix socket of this kind (stream, or preserving message boundaries) that is bound to a path and
/// does not listen yet. A socket file that nobody listens on any more is replaced; any other file stays, and
/// is an error.
pub(super) fn bind(kind: Type, path: &Path) -> io::Result<Socket> {
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, kind, None)?;
    let Err(error) = socket.bind(&address) else { return Ok(socket) };
    if error.kind() != io::ErrorKind::AddrInUse {
        return Err(error);
    }
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        let why = "a file is there that is not a socket; remove it, or name a path where no file is";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
    }
    // Any other answer, such as a full backlog or a refusal of access, means that somebody listens.
    let probe = Socket::new(Domain::UNIX, kind, None)?;
    probe.set_nonblocking(true)?;
    match probe.connect(&address).map_err(|error| error.kind()) {
        Err(io::ErrorKind::ConnectionRefused) => std::fs::remove_file(path)?,
        _ => return Err(error),
    }
    socket.bind(&address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn free_path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("weir-socket-file-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_living_one_is_not() {
        let path = free_path("stale");
        let first = bind(Type::STREAM, &path).expect("a new path");
        first.listen(1).expect("it is bound");
        assert_eq!(bind(Type::STREAM, &path).expect_err("one listens").kind(), io::ErrorKind::AddrInUse);
        let other = bind(Type::SEQPACKET, &path).expect_err("one of another kind listens");
        assert_eq!(other.kind(), io::ErrorKind::AddrInUse);
        drop(first);
        bind(Type::STREAM, &path).expect("nobody listens any more");
        fs::remove_file(&path).expect("it is there");
    }

    #[test]
    fn a_file_that_is_no_socket_is_never_removed() {
        let path = free_path("regular");
        fs::write(&path, "quotas").expect("a new file");
        for kind in [Type::STREAM, Type::SEQPACKET] {
            let error = bind(kind, &path).expect_err("a file is there");
            assert!(error.to_string().contains("not a socket"), "{error}");
        }
        assert_eq!(fs::read_to_string(&path).expect("it is still there"), "quotas");
        fs::remove_file(&path).expect("it is there");
    }

    #[test]
    fn a_socket_file_is_removed_by_its_own_process_and_by_no_earlier_one() {
        let path = free_path("own");
        let first = bind(Type::STREAM, &path).expect("a new path");
        let before = SocketFile::at(&path).expect("it is there");
        // The first process closes its socket and drains, while the second one starts.
        drop(first);
        let _second = bind(Type::STREAM, &path).expect("nobody listens any more");
        let after = SocketFile::at(&path).expect("it is there");
        before.remove();
        assert!(path.exists(), "it is the second one's");
        after.remove();
        assert!(!path.exists());
        assert!(SocketFile::at(&path).is_none());
    }
}
