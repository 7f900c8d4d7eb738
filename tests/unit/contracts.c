/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The contract headers are plain C, and stand alone: this file compiles with a C compiler for Linux and for Windows. */
#include "sanlab/fabric_wire.h"
#include "sanlab/sanproxy_ioctl.h"
#include "sanlab/snic_hw.h"

int sanlab_contracts_are_plain_c(void) { return (int)sizeof(struct snic_wqe) + (int)sizeof(struct fabric_ctl); }
