#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# scripts/sign and sancat: the certificate, the signed driver, its catalog; hashes computed anew in Python, signatures checked by
# osslsigncode; changed files, other certificates and damaged catalogs are refused.
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/lib.sh"
sancat=$out/linux/sancat
export SANLAB_CACHE=$work/cache
keep=$SANLAB_CACHE/sign
command -v osslsigncode >/dev/null || { not_ok "osslsigncode is installed (scripts/setup)"; summary; exit 1; }

new_package() { # folder
  rm -rf "$1"
  mkdir -p "$1"
  cp "$out/windows/sanproxy.inf" "$1"
}
another_second() { [ "$(date +%s)" != "$second" ]; }
sign() { "$top/scripts/sign" --driver "$out/windows/sanproxy.sys" --dir "$@"; }
sums() { (cd "$1" && sha256sum sanproxy.sys sanproxy.cat sanproxy.inf sanlab-test.cer); }
verify() { "$sancat" verify --certificate "$keep/$2.pem" "$1/sanproxy.cat" "$1/sanproxy.inf" "$1/sanproxy.sys"; }
# Authenticode and flat hashes by a second implementation; prints what `sancat show` must list.
cat >"$work/hashes.py" <<'P'
import hashlib, struct, sys
generation, folder = sys.argv[1], sys.argv[2]
def pe(data):
    e = struct.unpack_from("<I", data, 0x3C)[0]
    assert data[e:e + 4] == b"PE\0\0"
    optional = e + 24
    plus = struct.unpack_from("<H", data, optional)[0] == 0x20B
    security = optional + (112 if plus else 96) + 4 * 8
    offset, size = struct.unpack_from("<II", data, security)
    end = offset if size else len(data)
    image = bytearray(data[:end])
    image += bytes(-len(image) % 8)
    del image[security:security + 8]
    del image[optional + 64:optional + 68]
    return bytes(image)
lines = []
for name, kind in (("sanproxy.inf", "file"), ("sanproxy.sys", "PE")):
    data = open(f"{folder}/{name}", "rb").read()
    data = pe(data) if kind == "PE" else data
    lines.append(("sha1", hashlib.sha1(data), kind if generation == "1" else "tag", name))
    if generation == "2": lines.append(("sha256", hashlib.sha256(data), kind, name))
print("\n".join(sorted(f"{h} {d.hexdigest().upper()} {k} {n}" for h, d, k, n in lines)))
P
same_hashes() { # generation, folder
  diff <(python3 "$work/hashes.py" "$1" "$2") <("$sancat" show "$2/sanproxy.cat" | grep -E '^sha' | tr -s ' ' | LC_ALL=C sort)
}
one_signature() { # certificate, arguments of verify
  local certificate=$1
  shift
  osslsigncode verify -CAfile "$certificate" "$@" >"$work/verify" 2>&1 || { cat "$work/verify"; return 1; }
  grep -qx 'Number of verified signatures: 1' "$work/verify"
}
# The structure of a catalog, as openssl sees it: these lines in this order, and nothing twice that must be there once.
structure() { # file, generation
  local members=1.3.6.1.4.1.311.12.1.$(($2 + 1)) info=1.3.6.1.4.1.311.12.2.$(($2 + 1))
  openssl asn1parse -inform DER -in "$1" >"$work/asn1" || return 1
  python3 - "$work/asn1" "$members" "$info" "$2" <<'P'
import re, sys
text = open(sys.argv[1]).read()
members, info, generation = sys.argv[2], sys.argv[3], sys.argv[4]
seen = [m.group(1) for m in re.finditer(r"OBJECT +:(\S+)", text)]
def at(depth, oid):
    assert re.search(rf"d={depth} .*OBJECT +:{re.escape(oid)}$", text, re.M), f"no {oid} at depth {depth}"
at(1, "pkcs7-signedData")
at(4, "1.3.6.1.4.1.311.10.1")              # the content's type
at(7, "1.3.6.1.4.1.311.12.1.1")            # its use
at(7, members)
assert seen.count(members) == 1 and seen.count(info) == (2 if generation == "1" else 4), seen
assert seen.count("1.3.6.1.4.1.311.2.1.4") == 2 and seen.count("1.3.6.1.4.1.311.2.1.15") == 1
# The signature covers the type, too: contentType among the signed attributes names the list, not plain data.
after = text[text.index("contentType"):]
assert re.search(r"OBJECT +:(\S+)", after).group(1) == "1.3.6.1.4.1.311.10.1", after[:300]
P
}

for hash in sha256 sha1; do
  generation=2 option=
  [ $hash = sha1 ] && generation=1 option=--sha1
  p=$work/$hash
  new_package "$p"
  # shellcheck disable=SC2086
  check "$hash: a package is signed" sign "$p" $option
  check "$hash: the certificate signs code, belongs to its key, and both are for their owner only" bash -c "
    openssl x509 -in '$keep/$hash.pem' -noout -text >'$work/text' && grep -q 'Code Signing' '$work/text' && grep -q 'CA:FALSE' '$work/text' &&
    grep -q 'sanlab test certificate' '$work/text' && grep -qE 'Public-Key: \((2048|3072|4096) bit\)' '$work/text' &&
    [ \"\$(stat -c %a '$keep') \$(stat -c %a '$keep/$hash.key') \$(stat -c %a '$keep/$hash.pem')\" = '700 600 600' ] &&
    cmp <(openssl x509 -in '$keep/$hash.pem' -outform DER) '$p/sanlab-test.cer'"
  check "$hash: the catalog lists the hashes that a second implementation computes" same_hashes $generation "$p"
  check "$hash: its structure is a signed list of generation $generation" structure "$p/sanproxy.cat" $generation
  check "$hash: sancat finds catalog, files and signature in order" verify "$p" $hash
  check "$hash: osslsigncode finds the driver's signature good" one_signature "$keep/$hash.pem" -in "$p/sanproxy.sys"
  check "$hash: osslsigncode finds the catalog's signature good" one_signature "$keep/$hash.pem" -in "$p/sanproxy.cat"
  check "$hash: osslsigncode finds the driver in the catalog" one_signature "$keep/$hash.pem" -catalog "$p/sanproxy.cat" -in "$p/sanproxy.sys"
  check "$hash: osslsigncode finds the unsigned driver in the catalog" one_signature "$keep/$hash.pem" -catalog "$p/sanproxy.cat" -in "$out/windows/sanproxy.sys"
  check "$hash: the digest that osslsigncode computes is the listed one" bash -c "osslsigncode verify -CAfile '$keep/$hash.pem' -in '$p/sanproxy.sys' |
    grep -oE 'Calculated message digest *: *[0-9A-F]+' | grep -oE '[0-9A-F]+$' | grep -qxF \"\$('$sancat' hash --hash $hash '$p/sanproxy.sys' | cut -d ' ' -f 1)\""
  before=$(sums "$p") certificate=$(sha256sum "$keep/$hash.pem")
  # Signing again would be seen: the time of signing, in seconds, is part of it.
  second=$(date +%s)
  eventually another_second
  # shellcheck disable=SC2086
  sign "$p" $option >"$work/again" 2>&1
  if [ "$before" = "$(sums "$p")" ] && [ "$certificate" = "$(sha256sum "$keep/$hash.pem")" ] && grep -q 'signed already' "$work/again"; then
    ok "$hash: signing twice changes nothing"
  else not_ok "$hash: signing twice changes something"; cat "$work/again"; fi
done
p=$work/sha256

check "the driver that nthost runs is not signed" bash -c "! osslsigncode verify -in '$out/windows/sanproxy.sys'"
check "nthost runs the signed driver" timeout 60 "$out/linux/nthost" --driver "$p/sanproxy.sys" --device inproc,ip=10.78.0.1 --path "$out/windows" -- \
  "$out/windows/driver/sanctl.exe" --version
check "no key in the tree" bash -c "! git -C '$top' grep -lE 'BEGIN (RSA |ENCRYPTED )?PRIVATE KEY'"

# A signed driver as input gets one signature, not two.
new_package "$work/resigned"
cp "$work/sha1/sanproxy.sys" "$work/resigned"
check "a driver that somebody else has signed" "$top/scripts/sign" --dir "$work/resigned"
check "has our signature only" one_signature "$keep/sha256.pem" -in "$work/resigned/sanproxy.sys"

# What was changed is refused, and named.
changed() { # name of the case, file, command that changes it in place
  cp -r "$p" "$work/changed"
  (cd "$work/changed" && eval "$3")
  if cmp -s "$p/$2" "$work/changed/$2"; then not_ok "$1: the test changed nothing"; else
    refuses "$1" 1 "$2 is not the file that was listed" verify_changed
  fi
  rm -rf "$work/changed"
}
verify_changed() { "$sancat" verify --certificate "$keep/sha256.pem" "$work/changed/sanproxy.cat" "$work/changed/sanproxy.inf" "$work/changed/sanproxy.sys"; }
refuses() { # as in lib.sh, but for functions, too
  local name=$1 status=$2 text=$3 got
  shift 3
  "$@" >"$work/out" 2>&1 </dev/null
  got=$?
  if [ $got -eq "$status" ] && grep -qF -- "$text" "$work/out"; then ok "$name"
  else not_ok "$name: status $got (expected $status), wanted: $text"; tail -n 10 "$work/out" | sed 's/^/    /'; fi
}
poke() { # file, offset: changes one bit of that byte
  python3 -c "import sys; f = open(sys.argv[1], 'r+b'); f.seek(int(sys.argv[2])); b = f.read(1)[0]; f.seek(-1, 1); f.write(bytes([b ^ 1]))" "$@"
}
changed "one changed byte in the driver's code" sanproxy.sys "poke sanproxy.sys 5000"
changed "one changed byte in the driver's header" sanproxy.sys "poke sanproxy.sys 70"
changed "one changed byte in the INF" sanproxy.inf "poke sanproxy.inf 20"
changed "another DriverVer in the INF" sanproxy.inf "sed -i 's/^DriverVer.*/DriverVer   = 01\/01\/2026,0.1.0.1/' sanproxy.inf"
changed "another end of line in the INF" sanproxy.inf "sed -i '5s/\$/\\r/' sanproxy.inf"
refuses "a file that is left out" 1 "lists sanproxy.sys with sha256" "$sancat" verify "$p/sanproxy.cat" "$p/sanproxy.inf"
refuses "a file that is not listed" 1 "sanctl.exe is not the file" "$sancat" verify "$p/sanproxy.cat" "$p/sanproxy.inf" "$p/sanproxy.sys" "$out/windows/driver/sanctl.exe"
cp "$p/sanproxy.sys" "$work/odd.sys"
python3 -c "import sys; f = open(sys.argv[1], 'r+b'); f.seek(5000); f.write(b'\x55\xAA\x55')" "$work/odd.sys"
check "osslsigncode refuses the changed driver, too" bash -c "! osslsigncode verify -CAfile '$keep/sha256.pem' -catalog '$p/sanproxy.cat' -in '$work/odd.sys'"
cp "$p/sanproxy.sys" "$work/long.sys"
printf 'more' >>"$work/long.sys"
refuses "bytes behind the driver's signature" 1 "certificate table is not its end" "$sancat" hash "$work/long.sys"
head -c 300 "$p/sanproxy.sys" >"$work/short.sys"
refuses "a driver that is cut off" 1 "short.sys is a PE file" "$sancat" hash "$work/short.sys"

# After a change of the INF signing makes a new catalog, and leaves the driver.
cp -r "$p" "$work/edited"
sed -i 's/0\.1\.0\.0/0.1.0.9/' "$work/edited/sanproxy.inf"
check "a changed INF is signed again" sign "$work/edited"
check "and fits its new catalog" verify "$work/edited" sha256
check "the driver stays as it is" cmp "$p/sanproxy.sys" "$work/edited/sanproxy.sys"

# Other certificates.
make_certificate() { # file, usage, start, end
  mkdir -p "$work/ca"
  : >"$work/ca/index"
  printf '[ca]\ndefault_ca=d\n[d]\ndatabase=%s/ca/index\nrand_serial=yes\ndefault_md=sha256\npolicy=p\nnew_certs_dir=%s/ca\nx509_extensions=e\nunique_subject=no\n[p]\ncommonName=supplied\n[e]\nextendedKeyUsage=critical,%s\n' \
    "$work" "$work" "$2" >"$work/ca/conf"
  openssl req -new -newkey rsa:2048 -nodes -keyout "$1.key" -subj '/CN=sanlab test certificate, another' -out "$work/ca/request" 2>/dev/null &&
    openssl ca -batch -config "$work/ca/conf" -selfsign -keyfile "$1.key" -startdate "$3" -enddate "$4" -in "$work/ca/request" -notext -out "$1.pem" 2>/dev/null
}
foreign=$work/foreign expired=$work/expired future=$work/future mail=$work/mail
make_certificate "$foreign" codeSigning 20200101000000Z 20450101000000Z || not_ok "the test's own certificates"
make_certificate "$expired" codeSigning 20200101000000Z 20210101000000Z
make_certificate "$future" codeSigning 20440101000000Z 20450101000000Z
make_certificate "$mail" emailProtection 20200101000000Z 20450101000000Z
refuses "another certificate" 1 "signed by another certificate" "$sancat" verify --certificate "$foreign.pem" "$p/sanproxy.cat" "$p/sanproxy.inf" "$p/sanproxy.sys"
check "osslsigncode refuses it, too" bash -c "! osslsigncode verify -CAfile '$foreign.pem' -catalog '$p/sanproxy.cat' -in '$p/sanproxy.sys'"
for c in expired:"has expired" future:"not valid yet" mail:"not for signing code"; do
  cp -r "$p" "$work/other"
  "$sancat" make "$p/sanproxy.inf" "$work/other/sanproxy.cat"
  cp "$work/other/sanproxy.cat" "$work/unsigned.cat"
  osslsigncode sign -certs "$work/${c%%:*}.pem" -key "$work/${c%%:*}.key" -in "$work/unsigned.cat" -out "$work/${c%%:*}.cat" >/dev/null 2>&1
  refuses "a catalog whose certificate is ${c%%:*}" 1 "${c#*:}" "$sancat" verify --certificate "$work/${c%%:*}.pem" "$work/${c%%:*}.cat" "$p/sanproxy.inf" "$p/sanproxy.sys"
  rm -rf "$work/other"
done
refuses "a catalog without signature" 1 "not signed" "$sancat" verify --certificate "$keep/sha256.pem" "$work/unsigned.cat" "$p/sanproxy.inf" "$p/sanproxy.sys"
export SANLAB_CACHE=$work/cache2
mkdir -p "$SANLAB_CACHE/sign"
cp "$expired.pem" "$SANLAB_CACHE/sign/sha256.pem"
cp "$expired.key" "$SANLAB_CACHE/sign/sha256.key"
refuses "signing with an expired certificate" 1 "has expired" sign "$p"
cp "$foreign.key" "$SANLAB_CACHE/sign/sha256.key"
cp "$keep/sha256.pem" "$SANLAB_CACHE/sign/sha256.pem"
refuses "signing with another certificate's key" 1 "does not belong to" sign "$p"
rm "$SANLAB_CACHE/sign/sha256.key"
refuses "signing without the key" 1 "sha256.key is missing" sign "$p"
cp "$mail.pem" "$SANLAB_CACHE/sign/sha256.pem"
refuses "signing with a certificate for mail" 1 "not for signing code" sign "$p"
check "refusals change nothing" verify "$p" sha256
export SANLAB_CACHE=$work/cache
check "a new certificate: everything is signed again" bash -c "cp -r '$p' '$work/renewed' && SANLAB_CACHE='$work/cache3' '$top/scripts/sign' --dir '$work/renewed' &&
  '$sancat' verify --certificate '$work/cache3/sign/sha256.pem' '$work/renewed/sanproxy.cat' '$work/renewed/sanproxy.inf' '$work/renewed/sanproxy.sys'"
check "with one signature" one_signature "$work/cache3/sign/sha256.pem" -in "$work/renewed/sanproxy.sys"

# Damaged catalogs: every 5th byte changed, every 11th length. Nothing but a refusal, and always one within the signed list.
check "damaged catalogs are refused, without a crash" python3 - "$sancat" "$p" "$keep/sha256.pem" "$work/damaged.cat" <<'P'
import subprocess, sys
sancat, folder, certificate, path = sys.argv[1:]
good = open(folder + "/sanproxy.cat", "rb").read()
signed = (good.index(bytes.fromhex("060a2b0601040182370c0101")), good.index("HWID1".encode("utf-16-be")))
def status(data):
    open(path, "wb").write(data)
    return subprocess.run([sancat, "verify", "--certificate", certificate, path, folder + "/sanproxy.inf", folder + "/sanproxy.sys"], capture_output=True).returncode
bad = [f"byte {i}: status {s}" for i in range(0, len(good), 5)
       for s in [status(good[:i] + bytes([good[i] ^ 0x41]) + good[i + 1:])] if s != 1 and (s != 0 or signed[0] <= i < signed[1])]
bad += [f"length {n}: status {s}" for n in range(0, len(good), 11) for s in [status(good[:n])] if s != 1]
bad += [f"bytes behind the end: status {s}" for s in [status(good + b"x")] if s != 1]
print("\n".join(bad))
sys.exit(bool(bad))
P

# What sancat says about packages that it cannot make a catalog of.
cp -r "$p" "$work/poor"
refuses "a catalog under another name" 1 "names its catalog sanproxy.cat" "$sancat" make "$work/poor/sanproxy.inf" "$work/poor/other.cat"
sed -i 's/^CatalogFile.*//' "$work/poor/sanproxy.inf"
refuses "an INF without CatalogFile" 1 "names no catalog" "$sancat" make "$work/poor/sanproxy.inf" "$work/poor/sanproxy.cat"
cp "$p/sanproxy.inf" "$work/poor"
rm "$work/poor/sanproxy.sys"
refuses "a file of the INF that is missing" 1 "cannot read $work/poor/sanproxy.sys" "$sancat" make "$work/poor/sanproxy.inf" "$work/poor/sanproxy.cat"
refuses "an INF that is not there" 1 "sanproxy.inf is missing" "$top/scripts/sign" --dir "$work/nothing"
refuses "an unknown option" 2 "unknown option '--sha2'" "$top/scripts/sign" --sha2
refuses "an unknown generation" 2 "generation" "$sancat" make --generation 3 "$p/sanproxy.inf" "$p/sanproxy.cat"
summary
