"""Certificates for tests, made with openssl: certificate authorities, and the certificates that they sign."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

DAYS = "30"


@dataclass(frozen=True)
class Pair:
    """The files of a certificate and its private key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority, whose files all lie in one folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder / name
        self.folder.mkdir(parents=True)
        self.own = Pair(self.folder / "ca.crt", self.folder / "ca.key")
        openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", DAYS,
            "-subj", f"/CN={name}", "-keyout", self.own.key, "-out", self.own.certificate,
        )  # fmt: skip

    @property
    def certificate(self) -> Path:
        return self.own.certificate

    def sign(self, file: str, subject: str, alternatives: str = "", rsa: bool = False) -> Pair:
        """Makes a key and a signed certificate, for example with ("/CN=localhost", "DNS:localhost,IP:127.0.0.1")."""
        pair = Pair(self.folder / f"{file}.crt", self.folder / f"{file}.key")
        kind = ["rsa:2048"] if rsa else ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        request = self.folder / f"{file}.csr"
        openssl("req", "-newkey", *kind, "-nodes", "-subj", subject, "-keyout", pair.key, "-out", request)
        extensions = self.folder / f"{file}.ext"
        lines = ["basicConstraints=critical,CA:FALSE"] + ([f"subjectAltName={alternatives}"] if alternatives else [])
        extensions.write_text("\n".join(lines) + "\n")
        openssl(
            "x509", "-req", "-in", request, "-CA", self.own.certificate, "-CAkey", self.own.key, "-CAcreateserial",
            "-days", DAYS, "-extfile", extensions, "-out", pair.certificate,
        )  # fmt: skip
        return pair

    def revoke(self, file: str, *pairs: Pair) -> Path:
        """Writes a revocation list with exactly these certificates, and returns its path."""
        database, lists = self.folder / f"{file}.index", self.folder / f"{file}.crl"
        settings = self.folder / f"{file}.cnf"
        number = self.folder / f"{file}.number"
        lines = ["[ca]", "default_ca = own", "[own]", f"database = {database}", f"crlnumber = {number}", "default_md = sha256"]
        # A revocation list of version 1 has no extensions, so the second version is asked for.
        lines += [f"default_crl_days = {DAYS}", "crl_extensions = second", "[second]", "authorityKeyIdentifier = keyid"]
        settings.write_text("\n".join(lines) + "\n")
        database.write_text("")
        number.write_text("01\n")
        words = ["ca", "-config", settings, "-cert", self.own.certificate, "-keyfile", self.own.key]
        for pair in pairs:
            openssl(*words, "-revoke", pair.certificate)
        openssl(*words, "-gencrl", "-out", lists)
        return lists


def openssl(*arguments: object) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
