// SPDX-License-Identifier: GPL-2.0-or-later
#include "signature.h"

#include <openssl/pem.h>
#include <openssl/pkcs7.h>
#include <openssl/x509v3.h>

#include <memory>

namespace sancat {

namespace {

template <auto Free> struct Freer {
    template <typename T> void operator()(T *p) const { Free(p); }
};
using BioPtr = std::unique_ptr<BIO, Freer<BIO_free>>;
using CertificatePtr = std::unique_ptr<X509, Freer<X509_free>>;
using Pkcs7Ptr = std::unique_ptr<PKCS7, Freer<PKCS7_free>>;
using CertificateStack = std::unique_ptr<STACK_OF(X509), decltype([](STACK_OF(X509) *s) { sk_X509_free(s); })>;

BioPtr memory(const Bytes &data) { return BioPtr(BIO_new_mem_buf(data.data(), static_cast<int>(data.size()))); }

CertificatePtr read_certificate(const std::string &path) {
    const Bytes file = read_file(path);
    BioPtr in = memory(file);
    CertificatePtr certificate(file.find("-----BEGIN") != Bytes::npos ? PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr)
                                                                       : d2i_X509_bio(in.get(), nullptr));
    if (!certificate) throw Error(path + " is not a certificate (PEM and DER are known)");
    return certificate;
}

std::string subject(X509 *certificate) {
    BioPtr out(BIO_new(BIO_s_mem()));
    X509_NAME_print_ex(out.get(), X509_get_subject_name(certificate), 0, XN_FLAG_ONELINE);
    char *text = nullptr;
    const long size = BIO_get_mem_data(out.get(), &text);
    return std::string(text, static_cast<size_t>(size));
}

}  // namespace

void check_signature(const Bytes &file, const Catalog &catalog, const std::string &path) {
    const CertificatePtr wanted = read_certificate(path);
    if (!catalog.is_signed) throw Error("it is not signed");
    const auto *der = reinterpret_cast<const unsigned char *>(file.data());
    const Pkcs7Ptr pkcs7(d2i_PKCS7(nullptr, &der, static_cast<long>(file.size())));
    if (!pkcs7 || !PKCS7_type_is_signed(pkcs7.get())) throw Error("its signature cannot be read");

    const CertificateStack signers(PKCS7_get0_signers(pkcs7.get(), nullptr, 0));
    if (!signers || sk_X509_num(signers.get()) != 1) throw Error("it is not signed by exactly one certificate");
    X509 *signer = sk_X509_value(signers.get(), 0);
    if (X509_cmp(signer, wanted.get()) != 0) throw Error("it is signed by another certificate: " + subject(signer));
    if (!(X509_get_extension_flags(signer) & EXFLAG_XKUSAGE) || !(X509_get_extended_key_usage(signer) & XKU_CODE_SIGN))
        throw Error("its certificate is not for signing code: " + subject(signer));
    if (X509_cmp_current_time(X509_get0_notBefore(signer)) >= 0) throw Error("its certificate is not valid yet: " + subject(signer));
    if (X509_cmp_current_time(X509_get0_notAfter(signer)) <= 0) throw Error("its certificate has expired: " + subject(signer));

    // Signed is the content of the list's element, without its tag and length.
    BioPtr list = memory(catalog.list);
    if (PKCS7_verify(pkcs7.get(), nullptr, nullptr, list.get(), nullptr, PKCS7_NOVERIFY | PKCS7_BINARY) != 1)
        throw Error("its signature does not fit: the list was changed after it was signed");
}

}  // namespace sancat
